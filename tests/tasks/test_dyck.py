"""Dyck: a stack reads the strings back, splits hold the shapes they say, and the published numbers come out."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

import interp
from interp.models.build import build
from tasks.dyck import ClosingAnswers, Dyck, Strings, draw_strings, find_openers, list_shapes
from tasks.task import Task, TaskError
from tests.untyped import as_without_type_checks

SMALL = Dyck(types=3, depth=4, max_length=24, n_train=400, n_test=60)


def read_words(words):
    """(opener of each closer by position, deepest level, components' shapes) with a stack; fails on bad nesting."""
    stack, openers, components, deepest = [], {}, [""], 0
    for at, word in enumerate(words):
        if word.startswith("("):
            stack.append((at, word[1:]))
            components[-1] += "("
        else:
            opener, kind = stack.pop()
            assert word == f"{kind})"
            openers[at] = opener
            components[-1] += ")"
            if not stack:
                components.append("")
        deepest = max(deepest, len(stack))
    assert not stack
    return openers, deepest, tuple(components[:-1])


def spell(task, row):
    """The words of a row between the start and the padding."""
    words = [task.vocabulary[token] for token in row.tolist()]
    assert words[0] == "start"
    return [word for word in words[1:] if word != "pad"]


def read_strings(task, split):
    """All strings of a split as tuples, with their shapes by component."""
    strings = task.strings(split)
    rows = [strings.brackets[end - n : end].tolist() for end, n in zip(
        strings.lengths.cumsum(0).tolist(), strings.lengths.tolist(), strict=True
    )]  # fmt: skip
    return [(tuple(row), read_words([task.vocabulary[3 + b] for b in row])[2]) for row in rows]


@pytest.mark.parametrize("split", ["train", "id", "ood"])
def test_a_stack_finds_the_same_targets_and_openers(split):
    assert isinstance(SMALL, Task)
    batch = SMALL.sample(100, split=split, seed=1)
    assert batch.tokens.shape[1] == SMALL.strings(split).lengths.max() + 1 <= SMALL.n_ctx
    for i, row in enumerate(batch.tokens):
        words = spell(SMALL, row)
        openers, deepest, _ = read_words(words)
        assert 1 <= deepest <= 4
        assert 4 <= len(words) <= 24
        n = len(words)
        assert [SMALL.vocabulary[t] for t in batch.targets[i, : n + 1]] == [*words, "end"]
        assert batch.trained[i].nonzero()[:, 0].tolist() == list(range(n + 1))
        assert batch.scored[i].nonzero()[:, 0].tolist() == sorted(openers)
        wanted = [openers[at] + 1 if at in openers else at for at in range(batch.tokens.shape[1])]
        assert batch.roles["opener"][i].tolist() == wanted
        assert (batch.roles["open"][i].nonzero()[:, 0] - 1).tolist() == sorted(openers.values())
        assert (batch.roles["close"][i].nonzero()[:, 0] - 1).tolist() == sorted(openers)


@pytest.mark.parametrize("held_out", ["component", "string"])
@pytest.mark.parametrize("withheld_share", [0.0, 0.5])
def test_id_has_trained_shapes_in_new_strings_and_ood_a_shape_never_trained(held_out, withheld_share):
    task = replace(SMALL, held_out=held_out, withheld_share=withheld_share)
    read = {split: read_strings(task, split) for split in task.splits}
    units = {
        split: [shapes if held_out == "component" else ("".join(shapes),) for _, shapes in rows]
        for split, rows in read.items()
    }
    for split in task.splits:
        assert list_shapes(task.strings(split), types=3, held_out=held_out) == units[split]
    seen = {shape for shapes in units["train"] for shape in shapes}
    assert all(set(shapes) <= seen for shapes in units["id"])
    assert not any(set(shapes) <= seen for shapes in units["ood"])
    strings = {split: {string for string, _ in rows} for split, rows in read.items()}
    assert not strings["id"] & strings["train"]
    assert not strings["ood"] & strings["train"]
    assert not strings["ood"] & strings["id"]
    assert [len(read[split]) for split in task.splits] == [400, 60, 60]


def test_by_component_a_new_order_of_known_components_is_in_distribution():
    kinds = Counter()
    task = replace(SMALL, n_train=100, n_test=200)
    seen = {"".join(shapes) for _, shapes in read_strings(task, "train")}
    for split in ("id", "ood"):
        kinds[split] = sum("".join(shapes) not in seen for _, shapes in read_strings(task, split))
    assert 0 < kinds["id"] < 200
    assert kinds["ood"] == 200


def test_withheld_shapes_are_chosen_at_all_lengths_and_from_eight_brackets_on():
    rare, chosen = (
        {shape for shapes in list_shapes(task.strings("ood"), types=3, held_out="component") for shape in shapes}
        - {shape for shapes in list_shapes(task.strings("train"), types=3, held_out="component") for shape in shapes}
        for task in (replace(SMALL, n_train=20_000), replace(SMALL, n_train=20_000, withheld_share=0.3))
    )
    assert min(map(len, rare)) > 10  # every short shape is soon found among 20,000 strings
    assert min(map(len, chosen)) == 8


def test_matched_lengths_are_the_same_in_both_splits_and_leave_the_training_set():
    drawn = replace(SMALL, n_test=300)
    matched = replace(drawn, lengths="matched")
    lengths = {split: matched.strings(split).lengths.bincount().tolist() for split in ("id", "ood")}
    assert lengths["id"] == lengths["ood"]
    before = [drawn.strings(split).lengths.bincount(minlength=25) for split in ("id", "ood")]
    assert lengths["id"] == torch.minimum(*before).tolist()[: len(lengths["id"])]
    assert drawn.strings("id").lengths.float().mean() < drawn.strings("ood").lengths.float().mean() - 3
    assert torch.equal(matched.strings("train").brackets, drawn.strings("train").brackets)


def test_strings_are_drawn_with_the_published_probabilities():
    n = 40_000
    strings = draw_strings(n, types=4, depth=3, max_length=1000, generator=torch.Generator().manual_seed(0))
    steps = (strings.brackets < 4).long() * 2 - 1
    before = steps.cumsum(0) - steps
    opens = steps > 0
    assert opens[before == 0].all()
    assert not opens[before == 3].any()
    for height in (1, 2):
        coin = opens[before == height].double()
        assert coin.mean().item() == pytest.approx(0.5, abs=4 * 0.5 / len(coin) ** 0.5)
    kinds = strings.brackets[opens].long().bincount() / opens.sum()
    assert kinds.tolist() == pytest.approx([0.25] * 4, abs=0.005)
    # P(length 4) = P("(())") / 2 + P("()()") / 2 with P("()") = 1/2 and no end behind it: (1/4 * 1/2 + 1/2 * 1/2) / 2.
    share = (strings.lengths == 4).double().mean().item()
    assert share == pytest.approx(3 / 16, abs=4 * (3 / 16 * 13 / 16 / n) ** 0.5)


def test_the_bound_on_the_length_drops_and_does_not_cut():
    free, bounded = (
        draw_strings(20_000, types=1, depth=3, max_length=most, generator=torch.Generator().manual_seed(seed))
        for seed, most in ((0, 400), (1, 8))
    )
    wanted = free.lengths[free.lengths <= 8].bincount() / (free.lengths <= 8).sum()
    found = bounded.lengths.bincount() / len(bounded)
    assert found.tolist() == pytest.approx(wanted.tolist(), abs=0.02)


def test_the_published_statistics_of_the_validation_set():
    task = Dyck()
    strings = task.strings("id")
    lengths = strings.lengths.double()
    assert len(strings) == 20_000
    assert lengths.min() == 6  # all 800 strings of 4 brackets are in the training set
    error = 3 * lengths.std().item() / len(lengths) ** 0.5
    assert lengths.mean().item() == pytest.approx(13.3, abs=0.05 + error)
    assert lengths.quantile(torch.tensor([0.5, 0.9, 0.99]).double()).tolist() == pytest.approx([12, 22, 38], abs=2)
    shapes = list_shapes(strings, types=20, held_out="component")
    counts = torch.tensor([len(row) for row in shapes]).double()
    assert counts.mean().item() == pytest.approx(2.57, abs=0.005 + 3 * counts.std().item() / len(counts) ** 0.5)
    # A count of rare things: its spread is at most that of a Poisson number, 45.
    assert len({shape for row in shapes for shape in row}) == pytest.approx(2024, abs=120)
    batch = task.write(strings)
    answers = task.read_answers(torch.zeros(*batch.tokens.shape, task.d_vocab), batch)
    assert (answers.distance >= 10).double().mean().item() == pytest.approx(0.071, abs=0.005)
    assert task.strings("ood").lengths.double().mean() > 70


def test_openers_of_a_string_read_by_hand():
    steps = torch.tensor([[1, 1, -1, 1, 1, -1, -1, -1, 1, -1], [1, -1, 1, -1, 0, 0, 0, 0, 0, 0]])
    assert find_openers(steps).tolist() == [[0, 1, 1, 3, 4, 4, 3, 0, 8, 8], [0, 0, 2, 2, 4, 5, 6, 7, 8, 9]]


def test_only_closing_brackets_compete_and_the_distance_filter_takes_the_near_ones_out():
    task = Dyck(types=3, depth=6, max_length=40, n_train=1000, n_test=200)
    batch = task.sample(200, split="ood", seed=0)
    logits = torch.nn.functional.one_hot(batch.targets, task.d_vocab).float()
    logits[..., : 3 + task.types] = 5.0  # other tokens may be likelier
    assert task.score(logits, batch)["closing_accuracy"].tolist() == [1.0] * 200
    far = task.read_answers(logits, batch)
    position = torch.arange(batch.tokens.shape[1])
    wrong = (position + 1 - batch.roles["opener"] >= 10) & batch.scored
    logits[wrong] = -logits[wrong]  # wrong exactly where the filter looks
    answers = task.read_answers(logits, batch)
    assert torch.equal(answers.distance, far.distance)
    assert (answers.distance % 2 == 1).all()
    assert answers.accuracy(min_distance=10) == answers.accuracy(min_distance=11) == 0.0
    assert far.accuracy(min_distance=10) == 1.0
    assert answers.accuracy() == pytest.approx((answers.distance < 10).double().mean().item())
    frame = answers.to_frame()
    for i, value in enumerate(task.score(logits, batch)["closing_accuracy"].tolist()):
        assert value == pytest.approx(frame["right"][frame["string"] == i].mean())
    assert repr(answers).endswith("0.000 of the " + f"{(answers.distance >= 10).sum():,} at distance 10 or more)")


def test_the_mean_per_string_is_the_accuracy_and_its_spread_that_of_strings():
    generator = torch.Generator().manual_seed(0)
    accuracies, errors = [], []
    for _ in range(200):
        counts = torch.randint(1, 9, (100,), generator=generator)
        string = torch.arange(100).repeat_interleave(counts)
        hit = torch.rand(100, generator=generator)[string] < 0.7  # a string is right or wrong as a whole
        answers = ClosingAnswers(string=string, distance=torch.ones_like(string), right=hit)
        values = answers.per_string()
        assert values.mean().item() == pytest.approx(answers.accuracy())
        accuracies.append(answers.accuracy())
        errors.append(values.std().item() / 10)
    spread = torch.tensor(accuracies).std().item()
    assert torch.tensor(errors).mean().item() == pytest.approx(spread, rel=0.15)


def test_the_same_seed_gives_the_same_batch_and_another_data_seed_other_strings():
    one, same, other = (SMALL.sample(20, split="id", seed=seed).tokens for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    elsewhere = replace(SMALL, data_seed=1).strings("train").brackets
    assert not torch.equal(elsewhere[:100], SMALL.strings("train").brackets[:100])


def test_two_layers_train_on_it():
    model = build(
        n_layers=2, d_model=16, n_heads=2, d_vocab=SMALL.d_vocab, n_ctx=SMALL.n_ctx, act_fn="gelu", seed=0, device="cpu"
    )
    config = interp.TrainConfig(steps=60, batch_size=32, learning_rate=1e-2, eval_every=60, eval_sequences=60)
    history = interp.train(model, SMALL, config, progress="off").history
    assert history["id_loss"].iloc[-1] < history["id_loss"].iloc[0] - 0.3
    assert history["id_closing_accuracy"].iloc[-1] > 0.5 > history["id_closing_accuracy"].iloc[0]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Dyck(types=27), r"types=27 cannot be written: give 1 to 26 kinds of brackets"),
        (lambda: Dyck(depth=1), r"depth=1 nests nothing: give at least 2"),
        (lambda: Dyck(max_length=3), r"max_length=3 leaves no string: give at least 4"),
        (lambda: Dyck(held_out="primitive"), r"held_out='primitive' is unknown: give 'component' or 'string'"),
        (lambda: Dyck(lengths="equal"), r"lengths='equal' is unknown: give 'as_drawn' or 'matched'"),
        (lambda: Dyck(withheld_share=1.0), r"withheld_share=1.0 must be a share from 0 up to, not including, 1"),
        (lambda: Dyck(n_train=0), r"n_train=0 leaves a split without strings: give at least 1"),
        (lambda: SMALL.sample(3, split="test", seed=0), r"has no split 'test': give one of train, id, ood"),
        (lambda: SMALL.sample(0, split="id", seed=0), r"a batch of 0 sequences cannot be drawn"),
        (
            lambda: Dyck(types=1, depth=2, max_length=6, n_train=500, n_test=10).strings("id"),
            r"only 0 of 10 strings for 'id' were found among 163,840: give more types or depth, or a smaller n_train",
        ),
        (
            lambda: ClosingAnswers(
                string=torch.tensor([0]), distance=torch.tensor([3]), right=torch.tensor([True])
            ).accuracy(min_distance=10),
            r"no closing bracket is 10 or more behind its opening one: give a min_distance of at most 3, or more",
        ),
        (
            lambda: Dyck(types=2, depth=3, max_length=60, n_train=20_000, n_test=5, lengths="matched").strings("id"),
            r"no length has both 'id' and 'ood' strings, so lengths='matched' leaves none: give a larger n_test",
        ),
    ],
)
def test_bad_input_is_said_in_a_sentence(call, says):
    with as_without_type_checks(), pytest.raises(TaskError, match=says):
        call()


def test_strings_are_taken_joined_and_shown():
    strings = Strings(brackets=torch.tensor([0, 1, 3, 2, 0, 2, 0, 2, 1, 3]), lengths=torch.tensor([4, 4, 2]))
    taken = strings.take(torch.tensor([2, 0, 0]))
    assert [taken.row(i).tolist() for i in range(3)] == [[1, 3], [0, 1, 3, 2], [0, 1, 3, 2]]
    assert taken.pad(-1, width=5).tolist() == [[1, 3, -1, -1, -1], [0, 1, 3, 2, -1], [0, 1, 3, 2, -1]]
    assert repr(strings) == "Strings(3 strings of brackets, 10 brackets)"
