"""Charts against the definition, in which every span has a masked pass of its own, and what is wrong in words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import interp
from interp.errors import InputError
from interp.trees import starts
from interp.trees.causal import can_pack
from interp.trees.charts import measure_charts
from interp.trees.project import project_greedy
from tests.conftest import make_tiny, make_tokenizer
from tests.untyped import as_without_type_checks

SHAPE: dict[str, Any] = dict(n_layers=3, d_model=24, n_heads=3, d_vocab=20, n_ctx=12, seed=4, gamma=0.3, device="cpu")
WORDS: list[Any] = [[3, 4, 5, 6], [7, 8], [9, 3, 4, 11, 12, 13], [4, 4, 4, 4], [1, 2, 3, 4]]
SUB_WORDS: list[Any] = [[(3,), (4, 5), (6, 7, 8)], [(9, 10), (11,)], [(1,), (2,), (3, 4), (5,)]]


def build_model(kind: str) -> Any:
    """Weights large enough that masks move every state."""
    if kind == "learned":
        return interp.build(**SHAPE, act_fn="gelu_new")
    if kind == "rotary":
        return interp.build(**SHAPE, act_fn="silu", gated_mlp=True, positional_embedding_type="rotary", rotary_dim=8)
    if kind == "half rotary":
        return interp.build(
            **SHAPE, act_fn="relu", positional_embedding_type="rotary", rotary_dim=4, rotary_adjacent_pairs=True
        )
    if kind == "parallel":
        return interp.build(**SHAPE, act_fn="relu", parallel_attn_mlp=True)
    if kind == "attention only":
        return interp.build(**SHAPE, attn_only=True, normalization_type=None)
    if kind == "grouped":
        return interp.load(make_tiny("llama"), device="cpu")
    assert kind == "sinusoidal"
    return interp.build(**SHAPE, act_fn="relu", positions="sinusoidal")


def measure_directly(
    model: Any, sentence: Sequence[Any], *, bos: int | None, threshold_layer: int = 0, distance: str = "cosine"
) -> np.ndarray:
    """[layer, start, end] by the definition, in float64: a full pass, and for each span one in which every query reads
    BOS, the span and itself alone in the layers from the threshold on."""
    words = [word if isinstance(word, tuple) else (word,) for word in sentence]
    lead = [] if bos is None else [bos]
    tokens = torch.tensor([lead + [token for word in words for token in word]])
    ends = len(lead) + np.cumsum([len(word) for word in words])
    starts = ends - [len(word) for word in words]
    n, n_layers = len(words), model.cfg.n_layers

    def run(visible: torch.Tensor | None) -> np.ndarray:
        def mask(scores: torch.Tensor, hook: Any) -> torch.Tensor:
            assert visible is not None
            keep = visible | torch.eye(len(visible), dtype=torch.bool)
            return scores.masked_fill(~keep, -torch.inf)

        kept: list[torch.Tensor] = []
        hooks: list[Any] = [
            (f"blocks.{layer}.hook_resid_post", lambda state, hook: kept.append(state[0])) for layer in range(n_layers)
        ]
        if visible is not None:
            hooks += [(f"blocks.{layer}.attn.hook_attn_scores", mask) for layer in range(threshold_layer, n_layers)]
        with torch.no_grad():
            model.run_with_hooks(tokens, fwd_hooks=hooks)
        return torch.stack(kept).double().numpy()  # [layer pos d_model]

    chart = np.full((n_layers, n, n + 1), np.nan)
    unmasked = run(None)
    for start in range(n):
        for end in range(start + 1, n + 1):
            span = slice(starts[start], ends[end - 1])
            visible = torch.zeros(tokens.shape[1], dtype=torch.bool)
            visible[: len(lead)] = True
            visible[span] = True
            a, b = unmasked[:, span].sum(1), run(visible)[:, span].sum(1)
            if distance == "cosine":
                chart[:, start, end] = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
            else:
                chart[:, start, end] = -np.linalg.norm(a - b, axis=-1)
    return chart


@pytest.mark.parametrize("bos", [None, 0], ids=["without BOS", "with BOS"])
@pytest.mark.parametrize(
    "kind", ["learned", "sinusoidal", "rotary", "half rotary", "parallel", "attention only", "grouped"]
)
def test_every_chart_is_that_of_a_masked_pass_for_every_span(kind: str, bos: int | None) -> None:
    model = build_model(kind)
    assert can_pack(model, 12)
    sentences = WORDS + SUB_WORDS
    charts = measure_charts(model, sentences, bos="none" if bos is None else bos)
    lowest = []
    for index, sentence in enumerate(sentences):
        expected = measure_directly(model, sentence, bos=bos)
        np.testing.assert_allclose(charts.similarities[index].numpy(), expected, atol=1e-5)
        assert project_greedy(charts.similarities[index]) == project_greedy(torch.tensor(expected))
        lowest.append(np.nanmin(expected))
    assert min(lowest) < 0.9  # the masks do something


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("threshold_layer", [1, 2])
@pytest.mark.parametrize("kind", ["learned", "rotary"])
def test_layers_below_the_threshold_see_the_whole_sentence(kind: str, threshold_layer: int, distance: Any) -> None:
    model = build_model(kind)
    charts = measure_charts(model, WORDS, bos=0, threshold_layer=threshold_layer, distance=distance)
    assert charts.layers == tuple(range(threshold_layer, 3))
    for index, sentence in enumerate(WORDS):
        expected = measure_directly(model, sentence, bos=0, threshold_layer=threshold_layer, distance=distance)
        np.testing.assert_allclose(charts.similarities[index].numpy(), expected[threshold_layer:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bos", ["none", 0])
@pytest.mark.parametrize("kind", ["learned", "rotary", "grouped"])
def test_masked_passes_through_the_model_give_the_same_charts(
    kind: str, bos: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_model(kind)
    packed = measure_charts(model, WORDS + SUB_WORDS, bos=bos, threshold_layer=1)
    monkeypatch.setattr(starts, "can_pack", lambda model, longest: False)
    masked = measure_charts(model, WORDS + SUB_WORDS, bos=bos, threshold_layer=1)
    for one, other in zip(packed.similarities, masked.similarities, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0, equal_nan=True)


def test_hooks_that_the_model_carries_act() -> None:
    model = build_model("learned")
    plain = measure_charts(model, WORDS, bos=0)
    with interp.add_hooks(model, [("blocks.1.hook_mlp_out", lambda out, hook: 0 * out)]):
        hooked = measure_charts(model, WORDS, bos=0)
    model.blocks[1].mlp.W_out.data.zero_()
    model.blocks[1].mlp.b_out.data.zero_()
    without = measure_charts(model, WORDS, bos=0)
    torch.testing.assert_close(hooked[2][0], without[2][0], atol=1e-5, rtol=0, equal_nan=True)
    assert (plain[2][0] - hooked[2][0]).nan_to_num().abs().max() > 1e-3


def test_a_bridge_has_the_charts_of_the_hooked_transformer(both: tuple[Any, Any]) -> None:
    hooked, bridge = (measure_charts(model, WORDS, bos=0) for model in both)
    for one, other in zip(hooked.similarities, bridge.similarities, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0, equal_nan=True)


def test_a_prefix_is_never_masked_and_a_model_that_reads_no_other_word_is_invariant() -> None:
    charts = measure_charts(build_model("learned"), WORDS, bos=0)
    for layer in charts.layers:
        for chart in charts[layer]:
            assert (chart[0, 1:] == 1).all()
    alone = build_model("learned")
    for block in alone.blocks:
        block.attn.W_O.data.zero_()
    for chart in measure_charts(alone, WORDS, bos=0)[2]:
        assert ((chart == 1) | chart.isnan()).all()


@pytest.mark.parametrize("tokens_at_once", [1, 12, 30])
def test_batches_change_nothing_and_sentences_keep_their_order(tokens_at_once: int) -> None:
    model = build_model("rotary")
    whole = measure_charts(model, WORDS + SUB_WORDS, bos=0)
    split = measure_charts(model, WORDS + SUB_WORDS, bos=0, tokens_at_once=tokens_at_once)
    for one, other in zip(whole.similarities, split.similarities, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0, equal_nan=True)


def test_chosen_layers_and_the_frame() -> None:
    model = build_model("learned")
    every = measure_charts(model, WORDS, bos=0)
    last = measure_charts(model, WORDS, bos=0, layers="last")
    two = measure_charts(model, [torch.tensor(words) for words in WORDS], bos=0, layers=[2, 0])
    assert (last.layers, two.layers, two.n_words) == ((2,), (0, 2), (4, 2, 6, 4, 4))
    torch.testing.assert_close(last[2][2], every[2][2], equal_nan=True)
    torch.testing.assert_close(two[0][1], every[0][1], equal_nan=True)
    frame = every.to_frame()
    assert len(frame) == 3 * (10 + 3 + 21 + 10 + 10)
    row = frame.query("sentence == 2 and layer == 1 and start == 2 and end == 5").similarity.item()
    assert row == every[1][2][2, 5].item()
    assert repr(every) == "Charts(5 sentences of 2 to 6 words, layers 0 to 2, cosine, masked from layer 0 on)"
    assert "words, layers 0, 2, cosine" in repr(two)
    assert "words, layer 2, cosine" in repr(last)


def test_text_is_read_word_by_word() -> None:
    model = build_model("grouped")
    model.tokenizer = make_tokenizer()
    ids = [2 + ord(character) - 32 for character in "a bc d"]
    words = ((ids[0],), tuple(ids[1:4]), tuple(ids[4:]))
    assert measure_charts(model, ["a bc d", ["a", "bc", "d"]], bos="none").words == (words, words)
    with pytest.raises(InputError, match="Sentence 0 has the word 'ü', which the model's tokenizer doesn't know"):
        measure_charts(model, ["a ü d"], bos="none")


def test_a_tokenizer_that_reads_a_word_by_itself_in_another_way_serves_too_unless_it_joins_words() -> None:
    class OwnBlanks:
        """As legacy SentencePiece: a blank more in front of every text. `joins` is one token where it is a whole text."""

        unk_token_id, unk_token, padding_side = 1, "<unk>", "right"

        def __init__(self, joins: str = "") -> None:
            self.joins = joins

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [19] if text == self.joins else [2 + ord(letter) % 7 for letter in " " + text]

    model = build_model("learned")
    model.tokenizer = OwnBlanks()
    ids = [2 + ord(letter) % 7 for letter in " a bc"]
    assert measure_charts(model, ["a bc"], bos="none").words == ((tuple(ids[:2]), tuple(ids[2:])),)
    model.tokenizer = OwnBlanks(joins="a bc")
    with pytest.raises(InputError, match="The tokenizer joins words of 'a bc' or reads them in another way before the"):
        measure_charts(model, ["a bc"], bos="none")


def test_words_of_a_task_are_looked_up_in_its_vocabulary() -> None:
    vocabulary = ["pad", "the", "cat", "sleeps"]
    charts = measure_charts(
        build_model("learned"), ["the cat sleeps", ("cat", "sleeps"), [2, 3]], vocabulary=vocabulary
    )
    assert charts.words == (((1,), (2,), (3,)), ((2,), (3,)), ((2,), (3,)))


@pytest.mark.parametrize(
    ("sentences", "options", "said"),
    [
        ([], {}, "There are no sentences to measure; give at least one."),
        ("a b", {}, "The sentences are one text; give a list of sentences, each a text or a list of words."),
        (
            ["a b"],
            {},
            "Sentence 0 is text, but this model has no tokenizer; give token ids, or the word of each id as `vocabulary=`, "
            "such as a task's.",
        ),
        (["a b", " "], {"vocabulary": ["a", "b"]}, "Sentence 1 is empty; give two words or more."),
        (["a b", "a cat"], {"vocabulary": ["a", "b"]}, "Sentence 1 has the word 'cat', which isn't among the 2 of the"),
        (
            [["a", 1]],
            {"vocabulary": ["a", "b"]},
            "Sentence 0 has both strings and token ids; give all its words in one",
        ),
        ([[1, 2], []], {}, "Sentence 1 is empty; give two words or more."),
        ([[1]], {}, "Sentence 0 has one word, so there is nothing to split; give two words or more."),
        ([[1, ()]], {}, "Word 1 of sentence 0 has no tokens; give each word one or more."),
        ([[1, 20]], {}, "Sentence 0 has the token id 20, but this model's ids go from 0 to 19."),
        (
            [[1] * 12],
            {"bos": 0},
            "Sentence 0 has 13 tokens, the first one counted, but this model reads at most 12; give shorter sentences.",
        ),
        ([[1, 2]], {"threshold_layer": 3}, "threshold_layer=3 doesn't exist: this model has layers 0 to 2"),
        ([[1, 2]], {"threshold_layer": 2, "layers": [1]}, "Layer 1 comes before threshold_layer=2, where nothing is"),
        ([[1, 2]], {"layers": "first"}, "layers='first' isn't known; use 'all', 'last' or a list of layers."),
        ([[1, 2]], {"distance": "l1"}, "distance='l1' isn't known; use one of cosine, euclidean."),
        ([[1, 2]], {"layers": [3]}, "Layer 3 doesn't exist: this model has layers 0 to 2."),
    ],
)
def test_what_is_wrong_is_said(sentences: Any, options: dict[str, Any], said: str) -> None:
    with as_without_type_checks(), pytest.raises(InputError) as raised:
        measure_charts(build_model("learned"), sentences, **options)
    assert said in str(raised.value)


def test_a_layer_that_was_not_measured_is_refused() -> None:
    with pytest.raises(InputError, match="There is no chart of layer 0: these charts have layers 1, 2"):
        measure_charts(build_model("learned"), [[1, 2]], threshold_layer=1)[0]
