"""Charts of encoders against the definition, in which every span has a masked pass of its own, and against Hugging Face."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformer_lens import HookedEncoder, HookedTransformerConfig
from transformer_lens.pretrained.weight_conversions import convert_bert_weights

import interp
from interp.errors import InputError
from interp.trees import encoders
from interp.trees.charts import measure_charts
from interp.trees.project import project_cky, project_greedy
from interp.trees.projections import project_trees
from interp.trees.spans import can_gather, list_spans
from tasks.trees import left_branching
from tests.conftest import make_tokenizer
from tests.untyped import as_without_type_checks

SHAPE: dict[str, Any] = dict(n_layers=3, d_model=24, n_heads=3, d_vocab=20, n_ctx=12, seed=4, gamma=0.3, device="cpu")
SENTENCES: list[Any] = [
    *([3, 4, 5, 6], [7, 8], [9, 3, 4, 11, 12, 13], [4, 4, 4, 4]),
    *([(3,), (4, 5), (6, 7, 8)], [(9, 10), (11,)], [(1,), (2,), (3, 4), (5,)]),
]
KINDS = ["bert", "learned", "rotary", "grouped", "post-norm", "parallel", "attention only"]


def make_bert() -> tuple[Any, Any]:
    """Random weights as a HookedEncoder and as Hugging Face's model; none is at its default."""
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=48,
        max_position_embeddings=12,
        attn_implementation="eager",
    )
    original = transformers.BertForPreTraining(config).eval()  # the converter wants a pooler
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in original.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(1.5 * parameter.shape[-1] ** -0.5 * noise)
    cfg = HookedTransformerConfig(
        n_layers=3,
        d_model=24,
        n_heads=3,
        d_head=8,
        d_mlp=48,
        d_vocab=20,
        n_ctx=12,
        act_fn="gelu",
        eps=1e-12,
        attention_dir="bidirectional",
        normalization_type="LN",
        device="cpu",
        model_name="tiny-bert",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = HookedEncoder(cfg)
    model.load_state_dict(convert_bert_weights(original, cfg), strict=False)
    return model.eval(), original


def build_encoder(kind: str) -> Any:
    """Weights large enough that masks move every state."""
    if kind == "bert":
        return make_bert()[0]
    options: dict[str, Any] = {
        "learned": dict(act_fn="gelu_new"),
        "rotary": dict(act_fn="silu", gated_mlp=True, positional_embedding_type="rotary", rotary_dim=8),
        "grouped": dict(
            act_fn="relu", n_key_value_heads=1, positional_embedding_type="rotary", rotary_dim=4,
            rotary_adjacent_pairs=True,
        ),
        "post-norm": dict(act_fn="relu", norm_placement="post", positions="sinusoidal"),
        "parallel": dict(act_fn="relu", parallel_attn_mlp=True),
        "attention only": dict(attn_only=True, normalization_type=None),
    }[kind]  # fmt: skip
    return interp.build(**SHAPE, **options, attention_dir="bidirectional")


def measure_directly(
    model: Any, sentence: Sequence[Any], *, bos: int | None, eos: int | None, threshold_layer: int = 0, distance: str
) -> np.ndarray:
    """[layer, start, end] by the definition, in float64: a full pass, and for each span one in which every query reads
    the span and the two ends alone in the layers from the threshold on."""
    words = [word if isinstance(word, tuple) else (word,) for word in sentence]
    first, last = ([] if end is None else [end] for end in (bos, eos))
    tokens = torch.tensor([first + [token for word in words for token in word] + last])
    ends = len(first) + np.cumsum([len(word) for word in words])
    starts = ends - [len(word) for word in words]
    n, n_layers = len(words), model.cfg.n_layers
    output = "hook_normalized_resid_post" if isinstance(model, HookedEncoder) else "hook_resid_post"

    spans = [(start, end) for start in range(n) for end in range(start + 1, n + 1)]
    own = torch.zeros(len(spans), tokens.shape[1], dtype=torch.bool)
    for row, (start, end) in enumerate(spans):
        own[row, starts[start] : ends[end - 1]] = True
    visible = own.clone()
    visible[:, : len(first)] = True
    visible[:, tokens.shape[1] - len(last) :] = True

    def run(mask: torch.Tensor) -> np.ndarray:
        kept: list[torch.Tensor] = []
        hooks: list[Any] = [
            (f"blocks.{layer}.{output}", lambda state, hook: kept.append(state)) for layer in range(n_layers)
        ]
        hooks += [
            (f"blocks.{layer}.attn.hook_attn_scores", lambda scores, hook: scores.masked_fill(~mask, -torch.inf))
            for layer in range(threshold_layer, n_layers)
        ]
        with torch.no_grad():
            model.run_with_hooks(tokens.expand(len(mask), -1), fwd_hooks=hooks)
        return torch.stack(kept).double().numpy()  # [layer span pos d_model]

    inside = own[:, :, None].double().numpy()
    a = (run(torch.ones(1, 1, 1, tokens.shape[1], dtype=torch.bool)) * inside).sum(2)
    b = (run(visible[:, None, None]) * inside).sum(2)
    if distance == "cosine":
        similarity = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    else:
        similarity = -np.linalg.norm(a - b, axis=-1)
    chart = np.full((n_layers, n, n + 1), np.nan)
    chart[:, [start for start, _ in spans], [end for _, end in spans]] = similarity
    return chart


CASES = [
    *((kind, 0, ends) for kind in KINDS for ends in ((None, None), (0, 19))),
    *(
        ("bert", 0, (0, None)),
        ("bert", 1, (0, 19)),
        ("bert", 2, (0, 19)),
        ("rotary", 1, (None, None)),
        ("rotary", 2, (0, 19)),
    ),
]


@pytest.mark.parametrize(("kind", "threshold_layer", "ends"), CASES)
def test_every_chart_is_that_of_a_masked_pass_for_every_span(kind: str, threshold_layer: int, ends: Any) -> None:
    model = build_encoder(kind)
    assert can_gather(model, 12)
    bos, eos = ends
    distance: Any = "euclidean" if (kind, threshold_layer) == ("bert", 1) else "cosine"
    charts = measure_charts(
        model,
        SENTENCES,
        bos="none" if bos is None else bos,
        eos="none" if eos is None else eos,
        threshold_layer=threshold_layer,
        distance=distance,
    )
    assert (charts.direction, charts.bos, charts.eos) == ("bidirectional", bos, eos)
    lowest = []
    for index, sentence in enumerate(SENTENCES):
        expected = measure_directly(
            model, sentence, bos=bos, eos=eos, threshold_layer=threshold_layer, distance=distance
        )[threshold_layer:]
        found = charts.similarities[index]
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-5, rtol=1e-5)
        for project in (project_greedy, project_cky):
            assert project(found) == project(torch.tensor(expected))
        lowest.append(np.nanmin(expected))
    assert min(lowest) < 0.98  # the masks do something


def test_a_span_of_bert_is_what_hugging_face_gives_with_the_rest_of_the_sentence_as_padding() -> None:
    model, original = make_bert()
    sentence = [3, 4, 5, 6, 7]
    tokens = torch.tensor([[1, *sentence, 2]])

    def run(mask: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.stack(original(tokens, attention_mask=mask, output_hidden_states=True).hidden_states[1:])[:, 0]

    unmasked = run(torch.ones_like(tokens))
    charts = measure_charts(model, [sentence], bos=1, eos=2)
    for start in range(5):
        for end in range(start + 1, 6):
            mask = torch.zeros_like(tokens)
            mask[0, [0, 6, *range(1 + start, 1 + end)]] = 1
            own, full = (states[:, 1 + start : 1 + end].sum(1) for states in (run(mask), unmasked))
            expected = torch.cosine_similarity(own, full, dim=-1)
            torch.testing.assert_close(charts.similarities[0][:, start, end], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["bert", "rotary", "post-norm"])
def test_masked_passes_through_the_model_give_the_same_charts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_encoder(kind)
    how: dict[str, Any] = dict(bos=0, eos=19, threshold_layer=1)
    gathered = measure_charts(model, SENTENCES, **how)
    monkeypatch.setattr(encoders, "can_gather", lambda model, longest: False)
    masked = measure_charts(model, SENTENCES, **how)
    for one, other in zip(gathered.similarities, masked.similarities, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0, equal_nan=True)


@pytest.mark.parametrize("kind", ["bert", "learned"])
def test_hooks_that_the_model_carries_act(kind: str) -> None:
    model = build_encoder(kind)
    plain = measure_charts(model, SENTENCES, bos=0)
    with interp.add_hooks(model, [("blocks.1.hook_mlp_out", lambda out, hook: 0 * out)]):
        hooked = measure_charts(model, SENTENCES, bos=0)
    model.blocks[1].mlp.W_out.data.zero_()
    model.blocks[1].mlp.b_out.data.zero_()
    without = measure_charts(model, SENTENCES, bos=0)
    torch.testing.assert_close(hooked[2][0], without[2][0], atol=1e-5, rtol=0, equal_nan=True)
    assert (plain[2][0] - hooked[2][0]).nan_to_num().abs().max() > 1e-3


@pytest.mark.parametrize("tokens_at_once", [1, 12, 40])
def test_batches_change_nothing_and_sentences_keep_their_order(tokens_at_once: int) -> None:
    model = build_encoder("bert")
    whole = measure_charts(model, SENTENCES, bos=0, eos=19)
    split = measure_charts(model, SENTENCES, bos=0, eos=19, tokens_at_once=tokens_at_once)
    for one, other in zip(whole.similarities, split.similarities, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0, equal_nan=True)


def test_only_the_whole_sentence_is_unmasked_and_prefixes_are_not() -> None:
    charts = measure_charts(build_encoder("bert"), SENTENCES, bos=0, eos=19)
    for layer in charts.layers:
        for chart in charts[layer]:
            n = len(chart)
            assert chart[0, n] == 1
            assert (chart[0, 1:n] < 1).all()


def test_spans_are_gathered_between_the_ends_of_their_own_sentence() -> None:
    spans = list_spans([((3,), (4, 5)), ((6,), (7,))], bos=1, eos=2)
    assert spans.tokens.tolist() == [1, 3, 4, 5, 2, 1, 6, 7, 2]
    assert spans.position.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]
    ones = (spans.size == 1).nonzero()[:, 0]
    assert spans.tokens[spans.gather(ones)].tolist() == [[1, 3, 2], [1, 6, 2], [1, 7, 2]]
    assert spans.position[spans.gather(ones)].tolist() == [[0, 1, 4], [0, 1, 3], [0, 2, 3]]
    assert spans.is_whole.tolist() == [False, True, False, False, True, False]


def test_cky_keeps_prefixes_and_the_floor_is_that_of_untrained_encoders() -> None:
    model = build_encoder("bert")
    found = project_trees(model, SENTENCES, bos=0, eos=19, method="cky", n_untrained=2)
    assert found.prefixes == "kept"
    assert "cky with prefixes kept" in repr(found)
    assert "tiny-bert" in repr(found)
    assert any(tree != left_branching(len(chart)) for tree, chart in zip(found.trees[2], found.charts[2], strict=True))
    for chart, tree in zip(found.charts[2], found.trees[2], strict=True):
        assert project_cky(chart[None]) == [tree]
    assert len(found.untrained) == 2
    assert not np.allclose(found.untrained[0]["closed"], found.untrained[1]["closed"])
    assert found.provenance.model_class == "HookedEncoder"


def test_cls_and_sep_of_the_tokenizer_stand_at_the_ends() -> None:
    model = build_encoder("bert")
    assert (measure_charts(model, SENTENCES).bos, measure_charts(model, SENTENCES).eos) == (None, None)
    model.tokenizer = make_tokenizer()
    model.tokenizer.add_special_tokens({"cls_token": "!", "sep_token": '"'})
    charts = measure_charts(model, SENTENCES)
    assert (charts.bos, charts.eos) == (3, 4)
    charts = measure_charts(model, SENTENCES, bos="bos", eos="none")
    assert (charts.bos, charts.eos) == (3, None)


@pytest.mark.parametrize(
    ("sentences", "options", "said"),
    [
        (
            [[1, 2]],
            {"threshold_layer": 3},
            "threshold_layer=3 doesn't exist: this model has layers 0 to 2, and words are",
        ),
        ([[1]], {}, "Sentence 0 has one word, so there is nothing to split; give two words or more."),
        ([[]], {}, "Sentence 0 is empty; give two words or more."),
        ([[1, 20]], {}, "Sentence 0 has the token id 20, but this model's ids go from 0 to 19."),
        (
            [[1] * 11],
            {"bos": 0, "eos": 19},
            "Sentence 0 has 13 tokens, first and last one counted, but this model reads at most 12; give shorter sentences.",
        ),
        ([[1, 2]], {"eos": 20}, "The last token has id 20, but this model's ids go from 0 to 19."),
        ([[1, 2]], {"eos": "sep"}, "eos='sep' isn't known; use 'auto', 'none' or a token id."),
        ([[1, 2]], {"bos": 20}, "The first token has id 20, but this model's ids go from 0 to 19."),
    ],
)
def test_what_is_wrong_is_said(sentences: Any, options: dict[str, Any], said: str) -> None:
    with as_without_type_checks(), pytest.raises(InputError) as raised:
        measure_charts(build_encoder("bert"), sentences, **options)
    assert said in str(raised.value)


def test_encoders_that_cannot_be_measured_are_refused() -> None:
    from interp.models.convert import _make_bridge, prepare, private_copy

    model, original = make_bert()
    masked = transformers.BertForMaskedLM(original.config)
    bridge = _make_bridge(prepare(private_copy(masked)), name="tiny", reason="wanted here")
    with pytest.raises(InputError, match=r"encoder \(BertForMaskedLM\) whose attention no hook changes; give it as a"):
        measure_charts(bridge, SENTENCES)
    with pytest.raises(InputError, match="eos=3 is for encoders: in a causal model no word reads what stands last"):
        measure_charts(interp.build(**SHAPE, attn_only=True), SENTENCES, eos=3)
    model.cfg.attention_dir = "causal"
    with pytest.raises(InputError, match="made with attention_dir='causal', so it isn't the encoder it looks like"):
        measure_charts(model, SENTENCES)
