"""SCAN: every command against an interpreter of its own, published sizes, and what a row and a score mean."""

from collections import Counter

import pytest
import torch

from tasks.language import Scan, interpret_command, list_commands, spell
from tasks.language.sequences import score_answers
from tasks.task import Task, TaskError
from tests.untyped import as_without_type_checks

PUBLISHED = {
    "simple": (16_728, 4_182),
    "add_jump": (14_670, 7_706),
    "add_turn_left": (21_890, 1_208),
    "length": (16_990, 3_920),
}


def follow(words):
    """The meaning of a command by taking it apart from the outside in."""
    for conjunction, order in (("and", 1), ("after", -1)):
        if conjunction in words:
            at = words.index(conjunction)
            first, second = (follow(words[:at]), follow(words[at + 1 :]))[::order]
            return first + second
    if words[-1] in ("twice", "thrice"):
        return follow(words[:-1]) * (2 if words[-1] == "twice" else 3)
    verb = [] if words[0] == "turn" else [words[0].upper()]
    if len(words) == 1:
        return verb
    turn = [{"left": "LTURN", "right": "RTURN"}[words[-1]]]
    if words[1] == "around":
        return (turn + verb) * 4
    return (turn * 2 if words[1] == "opposite" else turn) + verb


def perfect(batch, d_vocab):
    return torch.nn.functional.one_hot(batch.targets, d_vocab).float()


def test_every_command_means_what_an_independent_interpreter_says():
    commands = list_commands()
    assert len(commands) == 20_910
    assert all(list(actions) == follow(command.split()) for command, actions in commands.items())
    assert max(len(command.split()) for command in commands) == 9
    assert max(map(len, commands.values())) == 48


@pytest.mark.parametrize(
    ("command", "actions"),
    [
        ("jump left", "LTURN JUMP"),
        ("jump around right", "RTURN JUMP RTURN JUMP RTURN JUMP RTURN JUMP"),
        ("turn left twice", "LTURN LTURN"),
        ("jump opposite left and walk thrice", "LTURN LTURN JUMP WALK WALK WALK"),
        ("jump opposite left after walk around left", "LTURN WALK LTURN WALK LTURN WALK LTURN WALK LTURN LTURN JUMP"),
    ],
)
def test_the_published_examples(command, actions):
    assert " ".join(interpret_command(command)) == actions


@pytest.mark.parametrize("split", PUBLISHED)
def test_published_sizes_disjoint_and_complete(split):
    task = Scan(split=split)
    train, test = (task.commands(part) for part in task.splits)
    assert (len(train), len(test)) == PUBLISHED[split]
    assert len(set(test)) == len(test)
    assert not set(train) & set(test)
    assert set(train) | set(test) == set(list_commands())


@pytest.mark.parametrize(
    ("split", "primitive", "others"), [("add_jump", "jump", 13_203), ("add_turn_left", "turn left", 19_701)]
)
def test_the_primitive_is_trained_alone_and_is_a_tenth(split, primitive, others):
    task = Scan(split=split)
    count = Counter(task.commands("train"))
    assert {command for command in count if primitive in command} == {primitive}
    assert count[primitive] * 10 == count.total()
    assert count.total() - count[primitive] == others
    assert set(count.values()) == {1, count[primitive]}
    assert all(primitive in command for command in task.commands("ood"))
    tokens = task.sample(4_000, split="train", seed=0).tokens
    drawn = Counter(spell(row, task.vocabulary).split(" : ")[0] for row in tokens)
    assert abs(drawn[primitive] / 4_000 - 0.1) < 5 * (0.09 / 4_000) ** 0.5
    assert {command for command in drawn if primitive in command} == {primitive}


def test_turn_left_means_the_two_words_side_by_side():
    trained = Scan(split="add_turn_left").commands("train")
    assert {"turn opposite left", "turn around left", "turn right", "walk left"} <= set(trained)


def test_lengths_do_not_overlap():
    task = Scan(split="length")
    lengths = {part: {len(interpret_command(command)) for command in task.commands(part)} for part in task.splits}
    assert (max(lengths["train"]), min(lengths["ood"]), max(lengths["ood"])) == (22, 24, 48)


def test_the_simple_split_depends_on_its_seed_alone():
    one, same, other = (Scan(data_seed=seed).commands("id") for seed in (0, 0, 1))
    assert one == same
    assert 0.1 < len(set(one) & set(other)) / len(one) < 0.3


@pytest.mark.parametrize("split", PUBLISHED)
def test_every_row_is_a_command_with_its_actions(split):
    task = Scan(split=split)
    assert isinstance(task, Task)
    for part in task.splits:
        allowed = set(task.commands(part))
        batch = task.sample(150, split=part, seed=1)
        assert batch.tokens.shape[1] <= task.n_ctx
        for row in range(150):
            text = spell(batch.tokens[row], task.vocabulary)
            command, answer = text.split(" : ")
            assert command in allowed
            assert answer.split() == [*follow(command.split()), "end"]
            words, length = len(command.split()), len(text.split())
            assert batch.roles["separator"][row].item() == words
            assert batch.roles["command"][row].nonzero().flatten().tolist() == list(range(words))
            assert batch.roles["actions"][row].nonzero().flatten().tolist() == list(range(words + 1, length - 1))
            assert batch.trained[row].nonzero().flatten().tolist() == list(range(words, length - 1))
            assert torch.equal(batch.trained, batch.scored)
            assert batch.targets[row, words : length - 1].tolist() == batch.tokens[row, words + 1 : length].tolist()


def test_the_kinds_of_words_part_a_command():
    task = Scan()
    batch = task.sample(200, split="train", seed=2)
    kinds = {kind: batch.roles[kind] for kind in ("verb", "side", "manner", "repetition", "conjunction")}
    assert torch.equal(torch.stack(list(kinds.values())).sum(0), batch.roles["command"].long())
    words = {kind: {task.vocabulary[token] for token in batch.tokens[mask].tolist()} for kind, mask in kinds.items()}
    assert words["verb"] == {"walk", "look", "run", "jump", "turn"}
    assert words["repetition"] == {"twice", "thrice"}
    assert words["conjunction"] == {"and", "after"}


def test_right_answers_score_one_and_a_single_wrong_action_none():
    task = Scan(split="length")
    batch = task.sample(50, split="ood", seed=3)
    logits = perfect(batch, task.d_vocab)
    scores = task.score(logits, batch)
    assert torch.equal(scores["exact_match"], torch.ones(50))
    assert torch.equal(scores["token_accuracy"], torch.ones(50))
    wrong = logits.clone()
    wrong[:25].scatter_(1, batch.roles["separator"][:25, :, None].expand(-1, -1, task.d_vocab), 0.0)  # predicts padding
    scores = task.score(wrong, batch)
    assert scores["exact_match"].tolist() == [0.0] * 25 + [1.0] * 25
    answered = batch.scored.sum(1)
    assert torch.allclose(scores["token_accuracy"][:25], 1 - 1 / answered[:25])
    elsewhere = torch.where(batch.scored[:, :, None], logits, torch.zeros_like(logits))
    assert torch.equal(task.score(elsewhere, batch)["exact_match"], torch.ones(50))
    assert not task.score(torch.zeros_like(logits), batch)["exact_match"].any()


def test_exact_match_under_the_right_prefix_is_that_of_a_greedy_decoder():
    task = Scan(split="length")
    batch = task.sample(80, split="train", seed=4)
    words = torch.randint(1, task.d_vocab, (80, batch.tokens.shape[1]), generator=torch.Generator().manual_seed(0))
    errs = torch.rand(words.shape, generator=torch.Generator().manual_seed(1)) < 0.04

    def continue_from(row, prefix):
        """A stubborn model: right but at some lengths, and astray for good once its prefix is wrong."""
        at = len(prefix) - 1
        astray = prefix != batch.tokens[row, : len(prefix)].tolist()
        return words[row, at].item() if astray or errs[row, at] else batch.targets[row, at].item()

    guess = [
        [continue_from(row, batch.tokens[row, : at + 1].tolist()) for at in range(words.shape[1])] for row in range(80)
    ]
    teacher = score_answers(torch.nn.functional.one_hot(torch.tensor(guess), task.d_vocab).float(), batch)
    decoded = []
    for row in range(80):
        start = batch.roles["separator"][row].item() + 1
        end = start + batch.scored[row].sum().item()
        prefix = batch.tokens[row, :start].tolist()
        while len(prefix) < end:
            prefix.append(continue_from(row, prefix))
        decoded.append(float(prefix == batch.tokens[row, :end].tolist()))
    assert 10 < sum(decoded) < 70
    assert teacher["exact_match"].tolist() == decoded


def test_the_same_seed_gives_the_same_batch():
    task = Scan(split="add_jump")
    one, same, other = (task.sample(20, split="train", seed=seed).tokens for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Scan(split="add_walk"), r"split='add_walk' is unknown: give one of simple, add_jump"),
        (lambda: Scan().sample(4, split="ood", seed=0), r"SCAN, simple has no split 'ood': give one of train, id"),
        (lambda: Scan().sample(0, split="train", seed=0), r"a batch of 0 sequences cannot be drawn: give at least 1"),
        (lambda: Scan().commands("test"), r"has no split 'test'"),
        (lambda: interpret_command("jump jump"), r"'jump jump' is no command of SCAN: give one such as"),
    ],
)
def test_bad_input_is_said_in_a_sentence(call, says):
    with as_without_type_checks(), pytest.raises(TaskError, match=says):
        call()
