"""Indirect-object sentences: what is drawn, checked token by token, under tokenizers of three kinds."""

from collections import Counter

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tasks.prompts import IOI
from tasks.prompts.names import NAMES
from tasks.prompts.templates import OBJECTS, PLACES, TEMPLATES
from tasks.task import Batch, TaskError
from tests.conftest import make_tokenizer
from tests.untyped import as_without_type_checks


def _corpus(names):
    return [
        *TEMPLATES * 20,
        *(f"Today {name} and {name} went to the {place}" for name in names for place in PLACES[:10]),
        *(f"in the {place} the {thing}" for place in PLACES for thing in OBJECTS),
    ]


def make_words(names=NAMES):
    """Whole words; a name that isn't among them is unknown."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    tokenizer.train_from_iterator(_corpus(names), trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")


def make_gpt2_like():
    """Bytes, with the space in front of a word as part of its token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(_corpus(NAMES), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def make_llama_like():
    """Pieces that begin with a lower bar, also at the start of the text, and a BOS that is added unless told not to."""
    from tokenizers import processors

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator(_corpus(NAMES), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<s>")


@pytest.fixture(scope="module", params=[make_words, make_gpt2_like, make_llama_like], ids=["words", "gpt2", "llama"])
def ioi(request):
    return IOI(request.param())


@pytest.fixture(scope="module")
def words():
    return IOI(make_words())


def test_roles_and_answers_are_what_they_are_called(ioi):
    prompts = ioi.sample(60, seed=0)
    assert isinstance(prompts, Batch)
    assert len(prompts) == 60
    assert prompts.tokens.shape[1] == int(prompts.roles["last"].max()) + 1
    names = {token_id: name for name, token_id in ioi.names.items()}
    for row, text in enumerate(prompts.texts):
        tokens = prompts.tokens[row]
        at = {role: int(positions[row]) for role, positions in prompts.roles.items()}
        io, s = names[int(prompts.io[row])], names[int(prompts.s[row])]
        assert text.count(f" {s}") - text.count(f" {s}a") >= 2
        assert (tokens[at["S1"]], tokens[at["S2"]], tokens[at["IO"]]) == (
            prompts.s[row],
            prompts.s[row],
            prompts.io[row],
        )
        assert at["S1"] < at["S2"] < at["last"]
        assert at["S1+1"] == at["S1"] + 1
        assert (at["IO"] < at["S1"]) == (prompts.orders[row] == "ABBA")
        # The whole text, with the answer behind it, in the tokenizer's own words.
        read = ioi.tokenizer(f"{text} {io}", add_special_tokens=False)["input_ids"]
        assert read == [*tokens[: at["last"] + 1].tolist(), int(prompts.io[row])]
        assert prompts.scored[row].nonzero().tolist() == [[at["last"]]]
        assert prompts.targets[row, at["last"]] == prompts.io[row]


def test_counterparts_differ_at_the_names_alone(ioi):
    prompts = ioi.sample(40, seed=1)
    swap, unrelated = prompts.corrupted["swap"], prompts.corrupted["unrelated"]
    differs = swap != prompts.tokens
    assert torch.equal(differs.nonzero()[:, 1:], prompts.roles["S2"])
    assert torch.equal(swap.gather(1, prompts.roles["S2"])[:, 0], prompts.io)
    mentions = torch.cat([prompts.roles[role] for role in ("IO", "S1", "S2")], dim=1)
    expected = torch.zeros_like(differs).scatter(1, mentions, True)
    assert torch.equal(unrelated != prompts.tokens, expected)
    strangers = unrelated.gather(1, mentions)
    for row in range(40):
        everyone = {*strangers[row].tolist(), int(prompts.io[row]), int(prompts.s[row])}
        assert len(everyone) == 5
        assert everyone <= set(ioi.names.values())


def test_names_orders_and_templates_are_balanced(words):
    n = len(words.names) + 25
    prompts = words.sample(n, seed=3)
    assert Counter(prompts.orders).most_common() == [("ABBA", (n + 1) // 2), ("BABA", n // 2)]
    for drawn, n_choices in ((prompts.io, len(words.names)), (prompts.s, len(words.names)), (prompts.templates, 18)):
        counts = Counter(drawn.tolist())
        assert len(counts) == n_choices
        assert max(counts.values()) - min(counts.values()) <= 1
    assert len(set(prompts.texts)) == n
    assert len(TEMPLATES) == 18
    assert len(set(NAMES)) == len(NAMES) >= 100


def test_the_seed_decides_and_a_first_token_shifts_everything(words):
    one, again, other = (words.sample(20, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.tokens, again.tokens)
    assert one.texts != other.texts
    behind = words.sample(20, seed=0, bos=7)
    assert (behind.tokens[:, 0] == 7).all()
    assert torch.equal(behind.tokens[:, 1:], one.tokens)
    assert all(torch.equal(behind.roles[role], one.roles[role] + 1) for role in one.roles)
    assert behind.texts == one.texts


def test_selected_prompts_are_those_rows(words):
    prompts = words.sample(12, seed=0)
    some = prompts.select(slice(3, 7))
    assert len(some) == 4
    assert some.texts == prompts.texts[3:7]
    assert torch.equal(some.corrupted["swap"], prompts.corrupted["swap"][3:7])
    assert torch.equal(some.roles["S2"], prompts.roles["S2"][3:7])


def test_scores_of_logits_that_are_known(words):
    prompts = words.sample(4, seed=0)
    logits = torch.zeros(*prompts.tokens.shape, len(words.tokenizer))
    last = prompts.roles["last"][:, 0]
    other = next(i for i in range(2, 50) if i not in {*prompts.io.tolist(), *prompts.s.tolist()})
    for row, (io, s, third) in enumerate([(3.0, 1.0, 0.0), (3.0, 1.0, 4.0), (1.0, 3.0, 0.0), (0.0, 0.0, 1.0)]):
        logits[row, last[row], prompts.io[row]] = io
        logits[row, last[row], prompts.s[row]] = s
        logits[row, last[row], other] = third
    scores = words.score(logits, prompts)
    assert scores["accuracy"].tolist() == [1, 0, 0, 0]
    assert scores["prefers_io"].tolist() == [1, 1, 0, 0]
    assert scores["logit_difference"].tolist() == [2, 2, -2, 0]


def test_padding_is_the_tokenizers():
    prompts = IOI(make_words()).sample(30, seed=0)
    assert (prompts.tokens == 1).any()
    after = torch.arange(prompts.tokens.shape[1]) > prompts.roles["last"]
    assert (prompts.tokens[after] == 1).all()


def test_what_cannot_be_asked_is_refused():
    with as_without_type_checks(), pytest.raises(TaskError, match="has no tokenizer, so no sentence can be put to it"):
        IOI(None)
    with pytest.raises(TaskError, match=f"writes 0 of {len(NAMES)} first names as one token.*need 10"):
        IOI(make_tokenizer())
    with pytest.raises(TaskError, match=f"writes 9 of {len(NAMES)} first names"):
        IOI(make_words(NAMES[:9]))
    assert list(IOI(make_words(NAMES[:10])).names) == list(NAMES[:10])
    with pytest.raises(TaskError, match="a batch of 0 prompts cannot be drawn"):
        IOI(make_words(NAMES[:10])).sample(0, seed=0)


def test_a_tokenizer_that_mixes_names_with_their_neighbours_is_refused():
    class Joined:
        """Keeps ` Aaron,` as one token though ` Aaron` is one as well."""

        def __init__(self):
            self.words = []

        def encode(self, text, add_special_tokens):
            words = text.replace(" and ", "_and ").split() if " and " in text else text.split()
            self.words += [word for word in words if word not in self.words]
            return [self.words.index(word) for word in words]

        def decode(self, ids):
            return " ".join(self.words[i] for i in ids)

    with pytest.raises(TaskError, match=r"doesn't keep the names of .* apart from the words around them"):
        IOI(Joined()).sample(1, seed=0)


@pytest.mark.slow
def test_smollm2_names_the_receiver(smollm2):
    from interp.models.forward import logits_at

    ioi = IOI(smollm2.tokenizer)
    assert len(ioi.names) >= 100
    prompts = ioi.sample(108, seed=0)
    scores, controls = (
        ioi.score_last(logits_at(smollm2, tokens, prompts.scored), prompts)
        for tokens in (prompts.tokens, prompts.corrupted["unrelated"])
    )
    assert scores["prefers_io"].mean() > 0.9
    assert scores["accuracy"].mean() > 0.9
    assert controls["accuracy"].mean() < 0.05
    assert 0.35 < controls["prefers_io"].mean() < 0.65


def test_prompts_that_are_alike_have_the_commonest_lengths_and_stay_in_order(smollm2):
    prompts = IOI(smollm2.tokenizer).sample(60, seed=3)
    lengths = prompts.roles["last"][:, 0].tolist()
    commonest = max(lengths.count(length) for length in lengths)
    few = prompts.choose_alike(commonest)
    assert len(set(few.roles["last"][:, 0].tolist())) == 1
    assert list(few.texts) == [text for text in prompts.texts if text in few.texts]
    assert len(prompts.choose_alike(20)) == 20
