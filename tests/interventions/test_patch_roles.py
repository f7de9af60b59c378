"""Positions of each example, by role or by number, and prompts of different lengths: equal to one patch per pass."""

import numpy as np
import pytest
import torch

import interp
from interp.figures import to_svg
from interp.interventions import patch_engine, patch_sweep
from interp.interventions.patch_sites import HOOKS
from interp.models.convert import _make_bridge, prepare, private_copy
from tasks.task import Batch
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks

LENGTHS = torch.tensor([5, 7, 4])
N, WIDTH, D_VOCAB = 3, 8, 97
ANSWER, WRONG = [5, 11, 2], 7
ROLES = {
    "name": torch.tensor([[1], [4], [0]]),
    "pair": torch.tensor([[0, 3], [5, 2], [2, 1]]),
    "some": torch.tensor([[0, 1, 1, 1, 0, 0, 0, 0], [0] * 8, [1, 0, 0, 0, 0, 0, 1, 0]]).bool(),  # one after the scored
    "last": (LENGTHS - 1)[:, None],
}
SITES = ("resid_pre", "attn_out", "mlp_out", "z", "k", "pattern")


def make_batch(seed=0, roles=ROLES, n=N):
    tokens = torch.randint(D_VOCAB, (n, WIDTH), generator=torch.Generator().manual_seed(seed))
    return Batch(tokens=tokens, targets=tokens, trained=tokens > -1, scored=tokens > -1, roles=roles)


CLEAN, CORRUPTED = make_batch(0), make_batch(1).tokens


@pytest.fixture(scope="module", params=["gpt2", "llama", "attention_only", "gpt2 bridge", "llama bridge"])
def model(request):
    if request.param == "attention_only":
        return interp.build(n_layers=2, d_model=24, n_heads=3, d_vocab=D_VOCAB, n_ctx=16, attn_only=True, seed=2)
    family, *bridge = request.param.split()
    few_heads = {"n_head": 3} if family == "gpt2" else {"num_attention_heads": 4, "head_dim": 12}
    hugging_face = make_tiny(family, **few_heads)
    if bridge:
        return _make_bridge(prepare(private_copy(hugging_face)), name="tiny", reason="wanted here")
    return interp.load(hugging_face, device="cpu")


def list_cell(role, example):
    """The positions of a role in an example, up to the last token."""
    given = ROLES[role][example]
    found = given.nonzero()[:, 0] if given.dtype == torch.bool else given
    return [p for p in found.tolist() if p < LENGTHS[example]]


@torch.no_grad()
def read(model, tokens, name):
    seen = []
    model.run_with_hooks(tokens, fwd_hooks=[(name, lambda activation, hook: seen.append(activation.clone()))])
    return seen[0]


@torch.no_grad()
def patch_alone(model, base, written, name, *, head, at):
    """Logits at the end of one prompt, without padding, in a run of its own in which `at` are patched one by one."""

    def write(activation, hook):
        edited = activation.clone()
        for position in at:
            pattern = name.endswith("hook_pattern")
            where = (0, head, position) if pattern else (0, position, *([] if head is None else [head]))
            edited[where] = written[where]
        return edited

    return model.run_with_hooks(base, fwd_hooks=[(name, write)])[:, -1]


@pytest.mark.parametrize("site", SITES)
def test_roles_equal_one_patch_per_pass_of_each_prompt_without_its_padding(model, site):
    if site == "mlp_out" and getattr(model.cfg, "attn_only", False):
        pytest.skip("this model has no MLP")
    metric = interp.logit_difference(ANSWER, WRONG)
    result = interp.patch(
        model, CLEAN.tokens, CORRUPTED, metric, site=site, positions=list(ROLES), scored="last", batch=CLEAN
    )
    assert result.engine == ("suffix" if isinstance(model, patch_engine.HookedTransformer) else "whole")
    assert result.scored == (4, 6, 3)
    assert result.position_labels == tuple(ROLES)
    assert result.positions is None
    heads = result.heads or (None,)
    values = result.values.reshape(N, len(result.layers), len(heads), len(ROLES))
    for example, length in enumerate(LENGTHS.tolist()):
        clean, corrupted = (tokens[example : example + 1, :length] for tokens in (CLEAN.tokens, CORRUPTED))
        for layer in result.layers:
            name = f"blocks.{layer}.{HOOKS[site]}"
            written = read(model, clean, name)
            for h, head in enumerate(heads):
                for r, role in enumerate(ROLES):
                    at = list_cell(role, example)
                    logits = patch_alone(model, corrupted, written, name, head=head, at=at)
                    expected = (logits[0, ANSWER[example]] - logits[0, WRONG]).item()
                    assert values[example, layer, h, r] == pytest.approx(expected, abs=1e-5), (
                        example,
                        layer,
                        head,
                        role,
                    )
    empty = result.effects.reshape(values.shape)[1, :, :, list(ROLES).index("some")]
    assert (empty == 0).all()  # the example has no such position
    assert np.abs(result.effects).max() > 1e-4


@pytest.mark.parametrize("positions", ["each", "all"])
@pytest.mark.parametrize("site", ["resid_pre", "z", "v", "pattern"])
def test_no_value_depends_on_the_padding(model, site, positions):
    def run(clean, corrupted, answers, scored):
        metric = interp.answer_log_probability(answers)
        return interp.patch(model, clean, corrupted, metric, site=site, positions=positions, scored=scored)

    padding = torch.arange(WIDTH) >= LENGTHS[:, None]
    together = run(CLEAN.tokens, CORRUPTED, ANSWER, LENGTHS - 1)
    other = run(CLEAN.tokens.masked_fill(padding, 3), CORRUPTED.masked_fill(padding, 3), ANSWER, LENGTHS - 1)
    np.testing.assert_allclose(other.values, together.values, atol=1e-5, rtol=0)
    for example, length in enumerate(LENGTHS.tolist()):
        row = slice(example, example + 1)
        alone = run(CLEAN.tokens[row, :length], CORRUPTED[row, :length], ANSWER[row], -1)
        found = together.values[row]
        if positions == "each":
            assert (found[..., length:] == together.corrupted[example]).all()  # a patch after the scored position
            found = found[..., :length]
        np.testing.assert_allclose(found, alone.values, atol=1e-5, rtol=0)
        assert together.clean[example] == pytest.approx(alone.clean[0], abs=1e-5)


@pytest.fixture(scope="module")
def small():
    return interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=D_VOCAB, n_ctx=16, d_mlp=32, act_fn="gelu")


def run_small(small, **options):
    options = {"site": "z", "scored": LENGTHS - 1, **options}
    return interp.patch(small, CLEAN.tokens, CORRUPTED, interp.logit_difference(ANSWER, WRONG), **options)


def test_numbers_of_each_example_are_roles_without_names(small):
    roles = run_small(small, positions=["last", "name"], scored="last", batch=CLEAN)
    numbers = run_small(small, positions=torch.cat([ROLES["last"], ROLES["name"]], dim=1))
    np.testing.assert_array_equal(numbers.values, roles.values)
    assert numbers.position_labels == ("column 0", "column 1")
    shared = run_small(small, positions=[1, 3])
    same = run_small(small, positions=torch.tensor([[1, 3]] * N))
    np.testing.assert_array_equal(same.values, shared.values)
    assert shared.positions == (1, 3)
    assert shared.position_labels is None


def test_all_positions_of_a_role_are_patched_together(small):
    everywhere = {"everywhere": torch.ones(N, WIDTH, dtype=torch.bool)}
    for site in ("resid_pre", "resid_mid", "mlp_out", "z", "v"):
        together = run_small(small, site=site, positions=["everywhere"], batch=make_batch(0, everywhere))
        np.testing.assert_array_equal(together.values[..., 0], run_small(small, site=site, positions="all").values)


def test_patches_run_with_those_that_begin_where_they_do(small, monkeypatch):
    """A run begins at the first position that any of its patches needs, so others with it would be longer than needed."""
    monkeypatch.setattr(patch_sweep, "_ENOUGH_TOKENS", 1)
    begun = []
    run = patch_engine.SuffixRuns.logits

    def watch(self, layer, rows):
        begun.append((len(rows), rows.starts.unique().tolist()))
        return run(self, layer, rows)

    monkeypatch.setattr(patch_engine.SuffixRuns, "logits", watch)
    result = run_small(small, positions=list(ROLES), scored=WIDTH - 1, batch=CLEAN, layers=[0])
    assert all(len(starts) == 1 for _, starts in begun)
    assert [start for _, (start,) in begun] == [0, 1, 2, 3, 4, 6]
    assert sum(n for n, _ in begun) == result.n_runs == (4 * N - 1) * 2  # one example lacks a role


@pytest.fixture(scope="module")
def moving():
    """Segments read twice behind filler of another length in each example; the token that the answer depends on moves."""
    generator = torch.Generator().manual_seed(0)
    n, filler = 8, 25
    clean, corrupted = (torch.full((n, 14), filler) for _ in range(2))
    first = torch.arange(n) % 4  # where the first copy begins
    for example, start in enumerate(first.tolist()):
        segment = torch.randperm(24, generator=generator)[:6]
        prompt = torch.cat([segment, segment[:3]])  # the last token is segment[2], and segment[3] follows
        clean[example, start : start + 9] = prompt
        corrupted[example, start : start + 9] = prompt
        corrupted[example, start + 3] = 24 + 2 + example % 4
    roles = {"before": first[:, None] + 2, "answer": first[:, None] + 3, "last": first[:, None] + 8}
    batch = Batch(tokens=clean, targets=clean, trained=clean > -1, scored=clean > -1, roles=roles)
    answer = roles["answer"]
    return batch, corrupted, interp.logit_difference(clean.gather(1, answer)[:, 0], corrupted.gather(1, answer)[:, 0])


def test_a_token_that_moves_is_found_by_its_role_only(moving):
    batch, corrupted, metric = moving
    machine = build_copying_machine()
    roles = ["before", "answer", "last"]

    def run(**options):
        return interp.patch(machine, batch.tokens, corrupted, metric, scored="last", batch=batch, **options)

    stream = run(site="resid_pre", positions=roles)
    np.testing.assert_allclose(stream.recovery, [[0, 1, 0], [0, 1, 0]], atol=1e-4)
    by_head = run(site="z", positions=roles)
    expected = np.zeros((2, 2, 3))
    expected[1, 0, 2] = 1
    np.testing.assert_allclose(by_head.recovery, expected, atol=1e-4)
    assert by_head.top(1) == [(1, 0, "last")]
    assert run(site="resid_pre").recovery.max() < 0.3  # at any one position only a quarter of the examples have it


def test_tables_pictures_and_words_name_the_roles(moving):
    batch, corrupted, metric = moving
    result = interp.patch(
        build_copying_machine(),
        batch.tokens,
        corrupted,
        metric,
        site="resid_pre",
        positions=["before", "answer"],
        scored="last",
        batch=batch,
    )
    frame = result.to_frame()
    assert list(frame["position"]) == ["before", "answer"] * 2
    np.testing.assert_allclose(frame["recovery"], [0, 1, 0, 1], atol=1e-4)
    assert "strongest layer 0, position answer: recovery 1.00" in repr(result)
    picture = result.figure(labels=[" the", " Mary"])
    assert "2 positions (before, answer)" in picture.alt
    assert "0 answer (1.00)" in picture.alt
    svg = to_svg(picture)
    assert all(f">{text}</text>" in svg for text in ("before", "answer", "the", "Mary"))
    assert "0 answer ' Mary': 1.000" in svg
    assert "<svg" in result._repr_html_()


def test_tokens_stand_below_shared_positions(small):
    stream = run_small(small, site="resid_pre", positions=[1, 4])
    svg = to_svg(stream.figure(labels=[" Mary", "\n"]))
    assert ">Mary</text>" in svg
    assert ">⏎</text>" in svg
    assert "1.4 '\\n'" in svg
    with pytest.raises(interp.InputError, match="1 labels were given, but the columns of this figure are 2 positions"):
        stream.figure(labels=["Mary"])
    with pytest.raises(interp.InputError, match="2 labels were given, but the columns of this figure are heads"):
        run_small(small, positions=[1, 4]).figure(labels=["Mary", "John"])


MISTAKES = [
    ({"positions": ["IO"], "batch": CLEAN}, "The batch has no role 'IO'; its roles: last, name, pair, some"),
    ({"positions": ["name"]}, r"positions='name' names roles of a batch; give that batch as `batch=`"),
    ({"scored": "name"}, r"scored='name' names roles of a batch"),
    (
        {"scored": "pair", "batch": CLEAN},
        "The role 'pair' has 2 positions in example 0; scored needs a role with exactly",
    ),
    ({"scored": "some", "batch": CLEAN}, "The role 'some' has 3 positions in example 0"),
    ({"positions": ["name"], "batch": make_batch(n=4, roles={})}, "batch= has 4 examples, but 3 are patched"),
    ({"scored": "last", "batch": make_batch(n=4, roles={})}, "batch= has 4 examples, but 3 are patched"),
    (
        {"positions": ["none"], "batch": make_batch(roles={"none": torch.zeros(N, WIDTH, dtype=torch.bool)})},
        "The role 'none' has no position in any example",
    ),
    ({"positions": ["name", "name"], "batch": CLEAN}, "names a role twice; give each role once"),
    ({"positions": ["name", 2], "batch": CLEAN}, r"positions=\['name', 2\] mixes roles with positions; give either"),
    (
        {"positions": torch.tensor([[1], [2], [8]])},
        "Position 8 in positions doesn't exist: the input has positions 0 to 7",
    ),
    ({"positions": torch.tensor([[1], [2], [-1]])}, "Position -1 in positions doesn't exist: positions count from 0"),
    ({"positions": torch.tensor([[1], [2]])}, "positions are given for 2 sequences, but the batch that runs has 3"),
    (
        {"positions": torch.tensor([1, 2, 3])},
        r"positions is a tensor of shape \[3\] and torch.int64; give integers \[exa",
    ),
    ({"positions": ROLES["some"]}, r"positions is a tensor of shape \[3, 8\] and torch.bool"),
    (
        {"positions": torch.tensor([[1], [2], [5]])},
        "'column 0' is at position 5 in example 2, which is scored at position 3: a patch after the scored position does",
    ),
    (
        {"positions": ["name"], "batch": CLEAN, "scored": 2},
        "'name' is at position 4 in example 1, which is scored at pos",
    ),
]


@pytest.mark.parametrize(("changed", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_mistakes(small, changed, message):
    with as_without_type_checks(), pytest.raises(interp.InputError, match=message):
        run_small(small, **changed)
