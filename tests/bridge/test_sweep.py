import numpy as np
import pytest
import torch

import interp
from interp.bridge.edit import edit_heads, swap_weights
from interp.bridge.find import find_bridge
from interp.bridge.passages import PASSAGES, tokenize_passages
from interp.bridge.result import BridgeSweep
from interp.bridge.subspaces import Subspaces
from interp.bridge.sweep import sweep_bridge
from interp.errors import InputError
from tasks.copying import repeated_tokens
from tasks.seeding import derive_generator
from tests.bridge.machine import BOS, D_VOCAB, INDUCTION, PLANE, PREVIOUS, build_circle_machine
from tests.conftest import make_tiny, make_tokenizer
from tests.untyped import as_without_type_checks

HEADS = [(0, 1), (1, 2), (1, 4)]
SEGMENT = 8


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def loaded(request):
    """Of two layers and 6 heads: LayerNorm with biases; RMSNorm, grouped queries and rotary positions."""
    return interp.load(make_tiny(request.param), device="cpu")


def sweep_quickly(model, **options):
    defaults = {"induction_heads": HEADS, "n_sequences": 5, "segment": SEGMENT, "n_draws": 2, "n_control_sequences": 3}
    return sweep_bridge(model, **{**defaults, **options})


def draw_tokens(model, n=5, seed=0):
    return repeated_tokens(
        n=n,
        segment=SEGMENT,
        copies=2,
        vocabulary=torch.arange(model.cfg.d_vocab),
        bos=None,
        generator=derive_generator(seed, "bridge sequences"),
    )


def write_projected(model, layer, head, project):
    """Hooks that put a projected output of one head in the place of its own."""
    written = {}

    def keep(z, hook):
        written["own"] = z[:, :, head] @ model.blocks[layer].attn.W_O[head]

    def exchange(out, hook):
        return out - written["own"] + project(written["own"])

    return [(f"blocks.{layer}.attn.hook_z", keep), (f"blocks.{layer}.hook_attn_out", exchange)]


def read_projected(model, layer, head, project):
    """Hooks that recompute one key-value head's keys from the projected stream, behind the norm but before its gain."""
    block, normed = model.blocks[layer], {}
    shared = head // (6 // (model.cfg.n_key_value_heads or 6))
    first = shared * (6 // (model.cfg.n_key_value_heads or 6))

    def keep(x, hook):
        centred = x - x.mean(-1, keepdim=True) if model.cfg.normalization_type == "LN" else x
        normed["x"] = centred / (centred.square().mean(-1, keepdim=True) + model.cfg.eps).sqrt()

    def exchange(keys, hook):
        read = project(normed["x"]) * block.ln1.w + getattr(block.ln1, "b", 0)
        edited = keys.clone()
        edited[:, :, shared] = read @ block.attn.W_K[first] + block.attn.b_K[first]
        return edited

    return [(f"blocks.{layer}.hook_resid_pre", keep), (f"blocks.{layer}.attn.hook_k", exchange)]


@torch.no_grad()
def run_slowly(model, bases, *, side, part):
    """Error and probability of whole runs in which the edit is made on activations."""

    def project_onto(basis):
        onto = basis @ basis.T if part == "keep" else torch.eye(48).double() - basis @ basis.T
        return lambda x: (x.double() @ onto).float()

    tokens, change = draw_tokens(model), write_projected if side == "OV" else read_projected
    hooks = [hook for layer, head in HEADS for hook in change(model, layer, head, project_onto(bases[layer]))]
    with interp.add_hooks(model, hooks):
        logits = model(tokens)[:, SEGMENT:-1]
    targets = tokens[:, SEGMENT + 1 :]
    probability = logits.softmax(-1).gather(-1, targets[..., None])[..., 0]
    return (logits.argmax(-1) != targets).float().mean(1).numpy(), probability.mean(1).numpy()


@pytest.mark.parametrize("part", ["remove", "keep"])
@pytest.mark.parametrize("side", ["QK", "OV"])
def test_equals_whole_runs_with_edited_activations(loaded, side, part):
    sweep = sweep_quickly(loaded, side=side, previous_token_heads=HEADS, parts=[part], ranks=[1, 6])
    elsewhere = {0: HEADS[1:], 1: HEADS[:1]}
    for rank in (1, 6):
        bases = {layer: find_bridge(loaded, heads, rank=rank).basis for layer, heads in elsewhere.items()}
        own = dict.fromkeys((0, 1), find_bridge(loaded, HEADS, rank=rank).basis)
        for fit, its_bases in (("cross_fitted", bases), ("own", own)):
            run = sweep.find(fit, rank, part)[0]
            error, probability = run_slowly(loaded, its_bases, side=side, part=part)
            n = len(run.error)
            np.testing.assert_allclose(run.probability, probability[:n], rtol=2e-4)
            np.testing.assert_allclose(run.error, error[:n], atol=1e-6)
            assert np.abs(run.probability - sweep.probability[:n]).max() > 1e-5


def test_a_model_with_hooks_of_the_callers_own_runs_whole(loaded):
    options = {"ranks": [2], "parts": ["remove"]}
    plain = sweep_quickly(loaded, **options)
    with interp.add_hooks(loaded, [("blocks.0.hook_resid_pre", lambda x, hook: x)]):
        whole = sweep_quickly(loaded, induction_heads=[(1, 2), (1, 4)], **options)
    later = sweep_quickly(loaded, induction_heads=[(1, 2), (1, 4)], **options)
    assert (plain.plan.n_blocks, whole.plan.n_blocks, later.plan.n_blocks) == (2, 2, 1)
    for one, other in zip(whole.runs, later.runs, strict=True):
        np.testing.assert_allclose(one.probability, other.probability, rtol=1e-4)


def test_the_model_comes_back_bit_for_bit(loaded):
    before = {name: (value, value.clone()) for name, value in loaded.named_parameters()}
    for options in ({"side": "OV", "previous_token_heads": HEADS}, {"shared_keys": "copied"}):
        sweep_quickly(loaded, ranks=[1], **options)
    after = dict(loaded.named_parameters())
    assert all(after[name] is value and torch.equal(value, copy) for name, (value, copy) in before.items())
    with pytest.raises(KeyError), swap_weights(loaded, {0: {"W_O": torch.zeros(6, 8, 48)}}):
        raise KeyError
    assert loaded.blocks[0].attn.W_O is after["blocks.0.attn.W_O"]


def test_a_copy_of_shared_keys_spares_the_other_heads():
    model = interp.load(make_tiny("llama"), device="cpu")
    basis = find_bridge(model, HEADS, rank=4).basis
    seen = {}

    @torch.no_grad()
    def patterns(name, **options):
        edit = (
            edit_heads(model, [(1, 2)], {1: basis}, side="QK", part="remove", fold="norms", **options)
            if options
            else {}
        )
        with (
            swap_weights(model, edit),
            interp.add_hooks(model, [("blocks.1.attn.hook_pattern", lambda x, hook: seen.__setitem__(name, x))]),
        ):
            model(draw_tokens(model))

    patterns("whole")
    patterns("edited", shared_keys="edited")
    patterns("copied", shared_keys="copied")

    def changed(name):
        return [h for h in range(6) if not torch.allclose(seen[name][:, h], seen["whole"][:, h], atol=1e-6)]

    assert changed("edited") == [0, 1, 2]
    assert changed("copied") == [2]
    torch.testing.assert_close(seen["copied"][:, 2], seen["edited"][:, 2])
    both = [sweep_quickly(model, ranks=[2], parts=["remove"], shared_keys=keys) for keys in ("edited", "copied")]
    assert both[0].collateral_heads == ((0, 0), (0, 2), (1, 0), (1, 1), (1, 3), (1, 5))
    assert both[1].collateral_heads == ()


@pytest.fixture(scope="module")
def machine():
    return build_circle_machine()


@pytest.fixture(scope="module")
def text(machine):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(D_VOCAB, (4, 12), generator=generator)


@pytest.fixture(scope="module")
def known(machine, text):
    return {
        side: sweep_bridge(
            machine,
            induction_heads=INDUCTION,
            previous_token_heads=PREVIOUS,
            side=side,
            n_sequences=6,
            segment=12,
            n_draws=20,
            n_control_sequences=5,
            control_ranks=[1, 2],
            ranks=[1, "cap"],
            text=text,
            bos=BOS,
        )
        for side in ("QK", "OV")
    }


def test_copying_through_a_plane_dies_with_the_plane_and_survives_everything_else(known):
    for sweep in known.values():
        assert sweep.bridge.cap == 2
        assert sweep.ranks == (1, 2)
        assert sweep.error.max() == 0
        assert torch.linalg.svdvals(sweep.bridge.basis[PLANE]).min() > 1 - 1e-5
        assert sweep.find("cross_fitted", 1)[0].error.mean() > 0.3  # mirror images are one key
        assert sweep.find("cross_fitted", 2)[0].error.mean() > 0.8
        random = sweep.compare("random", 2)
        assert random.controls.max() < 0.1
        assert random.low > 0.7
        assert random.p_value == pytest.approx(1 / 21)
    assert known["QK"].compare("other_heads", 2).controls.max() == 0
    kept = known["OV"].compare("random", 2, "keep")
    assert kept.bridge == 0
    assert kept.low > 0.5
    assert kept.p_value == pytest.approx(1 / 21)


def test_a_bridge_that_is_cross_fitted_as_it_is_has_no_second_line(known):
    assert {run.fit for run in known["OV"].runs} == {
        "cross_fitted",
        "random",
        "equal_energy_weights",
        "equal_energy_stack",
        "other_heads",
    }
    assert "cross-fitted as it is" in known["OV"].notes[-1]
    assert {run.fit for run in known["QK"].runs} >= {"cross_fitted", "own"}


def test_heads_of_one_layer_cannot_be_cross_fitted(machine):
    sweep = sweep_quickly(machine, induction_heads=[(1, 0)], ranks=["cap"], parts=["remove"])
    assert sweep.headline == "own"
    assert "can't be cross-fitted" in sweep.notes[-1]
    assert "fitted on the edited heads themselves" in repr(sweep)


def test_what_a_sweep_says(known, machine):
    sweep = known["QK"]
    assert sweep.headline_rank in (1, 2)
    for rank in (1, 2):
        value, low, high = sweep.text_rise(rank)
        assert low <= value <= high
    frame = sweep.to_frame()
    assert len(frame) == 1 + len(sweep.runs) == 1 + len(sweep.plan.steps)
    assert frame.loc[0, "fit"] == "untouched"
    contrasts = sweep.contrasts()
    assert set(contrasts.control) == {"random", "equal_energy_weights", "equal_energy_stack", "other_heads"}
    assert list(contrasts.n_draws.unique()) in ([20, 1], [1, 20])  # one set of other heads exists
    assert "only 1 set of other heads exists" in sweep.notes
    assert "BridgeSweep(built, QK side, rank" in repr(sweep)
    assert "<svg" in sweep._repr_html_()
    with pytest.raises(InputError, match=r"no run of 'random' with part='keep' at rank 7; it has ranks 1, 2"):
        sweep.find("random", 7, "keep")
    plain = sweep_quickly(machine, induction_heads=INDUCTION, ranks=[1, 2], control_ranks=[1, 2], parts=["keep"])
    assert plain.headline_rank == 2
    with pytest.raises(InputError, match="no loss on text"):
        plain.text_rise(1)


def test_the_plan_counts_what_is_run(known):
    plan = known["QK"].plan
    headline, beside = 2 * 2, 2 * 2 + 2 * (3 * 20 + 1) + 2 * (20 + 1)
    assert len(plan.steps) == headline + beside
    assert plan.n_passes == (1 + headline) * (6 + 4) + beside * 5
    assert plan.n_blocks == 2
    assert known["OV"].plan.n_blocks == 3


def test_energy_is_what_a_subspace_holds_and_controls_match_it():
    model = interp.build(n_layers=3, d_model=60, n_heads=5, d_vocab=40, n_ctx=32, attn_only=True, seed=1)
    heads = [(0, 1), (1, 2), (2, 4)]
    spaces = Subspaces(model, heads, heads, side="QK", distance="none", fold="norms", n_draws=3, seed=0)
    keys = [model.blocks[layer].attn.W_K[head].detach().double() for layer, head in heads]
    keys = [key - key.mean(0) for key in keys]
    queries = [model.blocks[layer].attn.W_Q[head].detach().double() for layer, head in heads]
    queries = [query - query.mean(0) for query in queries]
    dense = torch.cat([query @ key.T for query, key in zip(queries, keys, strict=True)])
    for rank in (2, 8):
        target = spaces.measure_energy(spaces.find("cross_fitted", rank))
        stack = spaces.measure_energy(spaces.find("own", rank)).stack
        basis = spaces.find("own", rank)[0]
        assert stack == pytest.approx(float((dense @ basis).square().sum() / dense.square().sum()), rel=1e-5)
        held = sum(float((basis.T @ key).square().sum()) for key in keys) / sum(
            float(key.square().sum()) for key in keys
        )
        assert spaces.measure_energy(spaces.find("own", rank)).weights == pytest.approx(held, rel=1e-5)
        for draw in range(3):
            by_weights, by_stack = (
                spaces.find(fit, rank, draw) for fit in ("equal_energy_weights", "equal_energy_stack")
            )
            assert spaces.measure_energy(by_weights).weights == pytest.approx(target.weights, abs=0.03)
            assert spaces.measure_energy(by_stack).stack == pytest.approx(stack, abs=0.03)
            assert by_stack[0].shape[1] > rank
            nested = by_stack[0][:, :rank].T @ spaces.find("random", rank, draw)[0]
            assert torch.linalg.svdvals(nested).min() > 1 - 1e-9
            assert all(set(others) != set(heads) for others in spaces.control_heads)


def test_the_loss_on_text_is_that_of_whole_runs(machine, known, text):
    with torch.no_grad():
        log_probability = machine(text)[:, :-1].log_softmax(-1)
    expected = -log_probability.gather(-1, text[:, 1:, None])[..., 0].mean(1)
    np.testing.assert_allclose(known["QK"].text_loss, expected, rtol=1e-4)
    assert all(len(run.text_loss) == (4 if run.fit == "cross_fitted" else 0) for run in known["QK"].runs)


def test_passages_in_the_models_own_tokens():
    model = interp.load(make_tiny("gpt2"), device="cpu")
    with pytest.raises(InputError, match="has no tokenizer, so it cannot read text"):
        tokenize_passages(model, n_positions=20, bos=None)
    model.tokenizer = make_tokenizer()
    text = tokenize_passages(model, n_positions=20, bos=0)
    assert text.shape == (len(PASSAGES), 20)
    assert (text[:, 0] == 0).all()
    assert model.tokenizer.decode(text[0, 1:10]).replace(" ", "") == "Theferry"[:8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"induction_heads": []}, "No head was given"),
        ({"induction_heads": [(7, 0)]}, "Head 7.0 doesn't exist"),
        ({"side": "OV"}, "previous-token heads write, but none was given"),
        ({"side": "VO"}, "side='VO' isn't known; use one of QK, OV"),
        ({"parts": []}, "name 'remove', 'keep' or both"),
        ({"ranks": [60]}, "rank=60 is above the cap: the stacked W_QK of these 3 heads"),
        ({"ranks": [12]}, "rank=12 is above the cap of the cross-fitted bridge.*at most 8"),
        ({"ranks": []}, r"ranks=\[\] asks for no rank"),
        ({"ranks": [1], "control_ranks": [2]}, r"control_ranks=\[2\] has 2, which isn't among the ranks \[1\]"),
        ({"n_draws": 0}, "n_draws=0 .* a bridge has no control"),
        ({"n_sequences": 1}, "an interval needs at least 2 sequences"),
        ({"segment": 40}, "make a sequence of 80, but this model reads at most n_ctx=64"),
        ({"text": torch.zeros(1, 9, dtype=torch.long)}, r"text has shape \[1, 9\]; give ids of at least 2 passages"),
        ({"text": torch.full((2, 9), 97)}, "text has ids from 97 to 97, but this model's go from 0 to 96"),
    ],
)
def test_what_cannot_be_swept(options, message):
    model = interp.load(make_tiny("gpt2"), device="cpu")
    with as_without_type_checks(), pytest.raises(InputError, match=message):
        sweep_quickly(model, **options)


def test_models_whose_weights_cannot_be_exchanged(both):
    with pytest.raises(
        InputError, match=r"weights of this TransformerBridge .* can't be exchanged; give a HookedTransformer"
    ):
        sweep_quickly(both[1])
    sandwich = interp.build(
        n_layers=2,
        d_model=48,
        n_heads=6,
        d_vocab=97,
        n_ctx=64,
        d_mlp=16,
        act_fn="relu",
        normalization_type="RMS",
        use_normalization_before_and_after=True,
    )
    with pytest.raises(InputError, match=r"passes a norm before it reaches the residual stream.*use side='QK'"):
        sweep_quickly(sandwich, side="OV", previous_token_heads=[(0, 0)])
    assert isinstance(sweep_quickly(sandwich, ranks=[1], parts=["remove"]), BridgeSweep)
