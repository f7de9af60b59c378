"""Models with norms behind the sums and fixed positions: against plain torch, and every measurement against slow hooks."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformer_lens import TransformerLensKeyValueCache

import interp
from interp.circuits.factors import read_factors
from interp.errors import InputError
from interp.heads.definitions import DEFINITIONS
from interp.interventions.patch_engine import can_skip
from interp.interventions.patch_sites import HOOKS
from interp.models.architecture import Architecture, architecture_of
from interp.models.check import HOOK_KINDS, acting_hooks
from interp.models.embeddings import SinusoidalPositions
from interp.models.forward import logits_at, run_until
from interp.models.initialise import Initialisation, initialise
from interp.models.post_norm import PostNormBlock, PostNormTransformer
from interp.models.provenance import hash_weights
from interp.models.suffix import run_block
from interp.models.weights import final_norm_gain
from interp.prompts.runs import ChoiceRuns
from interp.solutions.cutting import CutRuns
from tasks.anchor.designs import dropped_pairs
from tasks.copying import repeated_tokens
from tasks.prompts.rules import ChoiceItem
from tasks.seeding import derive_generator
from tasks.task import Batch
from tests.untyped import as_without_type_checks

SHAPE = dict(n_layers=3, d_model=24, n_heads=3, d_vocab=31, n_ctx=12, seed=3, gamma=0.3, device="cpu")
VASWANI = dict(norm_placement="post", positions="sinusoidal", embedding_scale="sqrt_d_model", act_fn="relu")
KINDS = {
    "vaswani": VASWANI,
    "rms, gated, rotary, grouped": dict(
        norm_placement="post", normalization_type="RMS", act_fn="silu", gated_mlp=True, positional_embedding_type="rotary",
        rotary_dim=8, n_heads=4, d_head=8, n_key_value_heads=2,
    ),
    "no gains": dict(norm_placement="post", normalization_type="LNPre", act_fn="gelu"),
    "attention only": dict(norm_placement="post", attn_only=True),
}  # fmt: skip
ANSWER, WRONG = [5, 11, 2], 7
METRIC = interp.logit_difference(ANSWER, WRONG)


def build(kind="vaswani", **changes):
    """A model whose gains and biases all do something."""
    model = interp.build(**SHAPE | KINDS[kind] | changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.rsplit(".", 1)[-1].startswith(("W_", "_W_")):
                parameter += 0.4 * torch.randn(parameter.shape, generator=derive_generator(0, name))
    return model


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return build(request.param)


def random_tokens(seed, n=3, length=7):
    return torch.randint(31, (n, length), generator=torch.Generator().manual_seed(seed))


CLEAN, CORRUPTED = random_tokens(0), random_tokens(1)


def run_plainly(model, tokens):
    """Logits in float64 from the state dict alone, position by position and head by head."""
    cfg = model.cfg
    weights = {name: tensor.double() for name, tensor in model.state_dict().items()}

    def normalise(name, x):
        if cfg.normalization_type.startswith("LN"):
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + cfg.eps).sqrt()
        return x * weights.get(f"{name}.w", 1.0) + weights.get(f"{name}.b", 0.0)

    def turn(x, position):
        if cfg.positional_embedding_type != "rotary":
            return x
        half = cfg.d_head // 2
        angle = position / 10_000 ** (torch.arange(half, dtype=torch.float64) / half)
        one, other = x[:half], x[half:]
        return torch.cat([one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()])

    def attend(layer, x):
        out = torch.zeros_like(x)
        block = f"blocks.{layer}.attn"
        shared = cfg.n_heads // (cfg.n_key_value_heads or cfg.n_heads)
        own = "_" if shared > 1 else ""
        for h in range(cfg.n_heads):
            g = h // shared
            q = x @ weights[f"{block}.W_Q"][h] + weights[f"{block}.b_Q"][h]
            k = x @ weights[f"{block}.{own}W_K"][g] + weights[f"{block}.{own}b_K"][g]
            v = x @ weights[f"{block}.{own}W_V"][g] + weights[f"{block}.{own}b_V"][g]
            for i in range(len(x)):
                scores = torch.stack([turn(q[i], i) @ turn(k[j], j) for j in range(i + 1)]) / math.sqrt(cfg.d_head)
                out[i] += scores.softmax(0) @ v[: i + 1] @ weights[f"{block}.W_O"][h]
        return out + weights[f"{block}.b_O"]

    def run_mlp(layer, x):
        mlp = f"blocks.{layer}.mlp"
        act = {"relu": F.relu, "silu": F.silu, "gelu": F.gelu}[cfg.act_fn]
        if cfg.gated_mlp:
            hidden = act(x @ weights[f"{mlp}.W_gate"]) * (x @ weights[f"{mlp}.W_in"]) + weights[f"{mlp}.b_in"]
        else:
            hidden = act(x @ weights[f"{mlp}.W_in"] + weights[f"{mlp}.b_in"])
        return hidden @ weights[f"{mlp}.W_out"] + weights[f"{mlp}.b_out"]

    logits = []
    for sequence in tokens:
        x = weights["embed.W_E"][sequence]
        if architecture_of(model).embedding_scale == "sqrt_d_model":
            x = x * math.sqrt(cfg.d_model)
        if cfg.positional_embedding_type == "standard":
            x = x + weights["pos_embed.W_pos"][: len(sequence)]
        for layer in range(cfg.n_layers):
            x = normalise(f"blocks.{layer}.ln1", x + attend(layer, x))
            if not cfg.attn_only:
                x = normalise(f"blocks.{layer}.ln2", x + run_mlp(layer, x))
        logits.append(x @ weights["unembed.W_U"] + weights["unembed.b_U"])
    return torch.stack(logits)


# --- what the model computes -------------------------------------------------------------------------------------------


def test_logits_are_those_of_a_plain_implementation(model):
    expected = run_plainly(model, CLEAN)
    assert expected.std() > 0.1
    torch.testing.assert_close(model(CLEAN).double(), expected, atol=1e-5, rtol=1e-5)


def test_hooks_see_what_is_added_and_what_the_norms_give(model):
    _, cache = model.run_with_cache(CLEAN)
    for layer, block in enumerate(model.blocks):
        seen = {name: cache[f"blocks.{layer}.hook_{name}"] for name in ("resid_pre", "attn_out", "resid_post")}
        after = block.ln1(seen["resid_pre"] + seen["attn_out"])
        if not model.cfg.attn_only:
            middle, written = cache["resid_mid", layer], cache["mlp_out", layer]
            assert torch.equal(middle, after)
            assert torch.equal(written, block.mlp(middle))
            after = block.ln2(middle + written)
        assert torch.equal(seen["resid_post"], after)
    assert torch.equal(model.unembed(cache["resid_post", -1]), model(CLEAN))
    assert not any(name.startswith("ln_final") for name in model.hook_dict)


def test_an_edit_at_every_hook_acts(model):
    missing = {"hook_mlp_out"} if model.cfg.attn_only else set()
    assert acting_hooks(model) == set(HOOK_KINDS) - missing
    zeroed = model.run_with_hooks(CLEAN, fwd_hooks=[("blocks.2.hook_resid_post", lambda x, hook: x * 0)])
    torch.testing.assert_close(zeroed, model.b_U.expand_as(zeroed))


def test_the_configuration_stays_transformer_lens_own(model):
    assert type(model) is PostNormTransformer
    assert all(type(block) is PostNormBlock for block in model.blocks)
    assert type(model.cfg).__name__ == "HookedTransformerConfig"
    assert not any(name.startswith("ln_final") for name in model.state_dict())
    assert model.provenance.model_class == "PostNormTransformer"
    assert model.provenance.reason.startswith("built from a configuration with norms after the sums")


def test_generation_takes_the_likeliest_token_each_time(model):
    whole = CLEAN
    for _ in range(5):
        whole = torch.cat([whole, model(whole)[:, -1:].argmax(-1)], dim=1)
    how = dict(do_sample=False, stop_at_eos=False, use_past_kv_cache=False, verbose=False)
    assert torch.equal(model.generate(CLEAN, max_new_tokens=5, **how), whole)


def test_cached_keys_and_values_are_those_of_the_whole_run(model):
    cache = TransformerLensKeyValueCache.init_cache(model.cfg, "cpu", len(CLEAN))
    parts = [
        model(part, past_kv_cache=cache, attention_mask=torch.ones_like(part)) for part in CLEAN.split([3, 1, 3], dim=1)
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(CLEAN), atol=1e-5, rtol=1e-5)


def test_a_block_alone_gives_what_it_gives_in_the_model(model):
    _, cache = model.run_with_cache(CLEAN)
    for layer, block in enumerate(model.blocks):
        x, after = cache["resid_pre", layer], cache["resid_post", layer]
        torch.testing.assert_close(run_block(block, x, None), after, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(run_block(block, x, None, last_only=True), after[:, -1:], atol=1e-5, rtol=1e-5)


def test_starting_and_stopping_in_the_middle(model):
    middle = run_until(model, CLEAN, "blocks.1.hook_resid_pre")
    everywhere = torch.ones_like(CLEAN, dtype=torch.bool)
    torch.testing.assert_close(
        logits_at(model, CLEAN, everywhere, start=(1, middle)), model(CLEAN).flatten(0, 1), atol=1e-6, rtol=1e-6
    )


# --- positions and embeddings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_sinusoidal_positions_are_the_published_table(placement):
    model = interp.build(**SHAPE, positions="sinusoidal", norm_placement=placement, attn_only=True)
    for t in range(12):
        for i in range(12):
            angle = t / 10_000 ** (2 * i / 24)
            pair = model.W_pos[t, 2 * i : 2 * i + 2].tolist()
            assert pair == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)
    assert interp.build(**SHAPE | {"d_model": 7, "n_heads": 1}, positions="sinusoidal", attn_only=True).W_pos.shape == (
        12,
        7,
    )


def test_a_fixed_table_is_no_parameter_and_nothing_moves_it():
    model = build()
    table = model.W_pos.clone()
    assert "pos_embed.W_pos" not in dict(model.named_parameters())
    assert "pos_embed.W_pos" in model.state_dict()
    assert not model.W_pos.requires_grad
    initialise(model, Initialisation(gamma=0.1), seed=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    model(CLEAN).square().mean().backward()
    optimizer.step()
    assert torch.equal(model.W_pos, table)


def test_scaled_embeddings_enter_the_stream_scaled_and_stay_raw_as_a_parameter():
    scaled = interp.build(**SHAPE, embedding_scale="sqrt_d_model", attn_only=True)
    plain = interp.build(**SHAPE, attn_only=True)
    assert torch.equal(scaled.W_E, plain.W_E)
    torch.testing.assert_close(
        run_until(scaled, CLEAN, "hook_embed"), run_until(plain, CLEAN, "hook_embed") * math.sqrt(24)
    )


def test_learned_positions_are_what_there_was():
    learned, default = (interp.build(**SHAPE, attn_only=True, positions=word) for word in ("learned", None))
    assert torch.equal(learned(CLEAN), default(CLEAN))
    assert architecture_of(learned) == architecture_of(default) == Architecture()


def test_models_of_the_same_weights_have_different_hashes_where_they_compute_differently():
    kinds = [{}, {"embedding_scale": "sqrt_d_model"}, {"norm_placement": "post"}, {"positions": "sinusoidal"}]
    models = [interp.build(**SHAPE, attn_only=True, normalization_type="LNPre", **kind) for kind in kinds]
    assert len({hash_weights(model) for model in models}) == 4
    assert hash_weights(models[0]) == hash_weights(dict(models[0].named_parameters()))


# --- copies and checkpoints --------------------------------------------------------------------------------------------


def test_save_and_load_give_the_same_model_bit_for_bit(model, tmp_path):
    interp.save(model, tmp_path / "one")
    again = interp.load(tmp_path / "one")
    assert type(again) is type(model)
    assert architecture_of(again) == architecture_of(model)
    assert again.provenance.weights_sha256 == hash_weights(model)
    assert torch.equal(again(CLEAN), model(CLEAN))
    assert torch.equal(copy.deepcopy(again)(CLEAN), model(CLEAN))


@pytest.mark.parametrize("changes", [{"positions": "sinusoidal"}, {"embedding_scale": "sqrt_d_model"}])
def test_pre_norm_models_keep_their_positions_and_scale(changes, tmp_path):
    model = interp.build(**SHAPE, act_fn="relu", **changes)
    interp.save(model, tmp_path / "one")
    again = interp.load(tmp_path / "one")
    assert architecture_of(again) == architecture_of(copy.deepcopy(model)) == Architecture(**changes)
    assert torch.equal(again(CLEAN), model(CLEAN))


def test_only_what_older_versions_would_take_for_another_model_is_version_2(tmp_path):
    def describe(model):
        interp.save(model, tmp_path / "one")
        return json.loads((tmp_path / "one" / "interp.json").read_text())

    plain = describe(interp.build(**SHAPE, attn_only=True))
    assert plain["version"] == 1
    assert list(plain) == ["format", "version", "config", "provenance"]
    new = describe(build())
    assert new["version"] == 2
    assert new["architecture"] == {
        "norm_placement": "post", "positions": "sinusoidal", "embedding_scale": "sqrt_d_model"
    }  # fmt: skip


def test_a_checkpoint_in_another_precision(tmp_path):
    model = build()
    interp.save(model, tmp_path / "one")
    half = interp.load(tmp_path / "one", dtype="bfloat16")
    assert half.W_pos.dtype == half.W_E.dtype == torch.bfloat16
    assert isinstance(half.pos_embed, SinusoidalPositions)
    torch.testing.assert_close(half(CLEAN).float(), model(CLEAN), atol=0.3, rtol=0.1)


# --- measurements ------------------------------------------------------------------------------------------------------


def patch_slowly(model, base, source, name, *, position, head=None):
    """Logits at the last position of one run with one patch."""
    _, cache = model.run_with_cache(source)

    def write(activation, hook):
        edited = activation.clone()
        there, here = (x.transpose(1, 2) if "pattern" in name else x for x in (edited, cache[name]))
        where = (slice(None), position, *([] if head is None else [head]))
        there[where] = here[where]
        return edited

    return model.run_with_hooks(base, fwd_hooks=[(name, write)])[:, -1]


@pytest.mark.parametrize(
    "site", ["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z", "q", "k", "pattern"]
)
@torch.no_grad()
def test_patching_is_one_hook_a_run(model, site):
    if model.cfg.attn_only and site in ("resid_mid", "mlp_out"):
        pytest.skip("this model has no MLP")
    result = interp.patch(model, CLEAN, CORRUPTED, METRIC, site=site, positions=[0, 4, 6], layers=[0, 2])
    assert result.engine == "whole"
    n_heads = result.values.shape[2] if result.heads else 1
    clean = model(CLEAN)[:, -1]
    for i, layer in enumerate((0, 2)):
        for head in range(n_heads):
            for j, position in enumerate((0, 4, 6)):
                name = f"blocks.{layer}.{HOOKS[site]}"
                own = {"head": head} if result.heads else {}
                logits = patch_slowly(model, CORRUPTED, CLEAN, name, position=position, **own)
                expected = METRIC(logits, clean).numpy()
                found = result.values[:, i, head, j] if result.heads else result.values[:, i, j]
                np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("site", ["resid_mid", "mlp_out", "z"])
def test_attributions_are_gradients_at_the_site_itself(site):
    model = build()
    result = interp.attribution_patch(model, CLEAN, CORRUPTED, METRIC, site=site, positions="each", check=0)
    name = f"blocks.1.{HOOKS[site]}"
    _, theirs = model.run_with_cache(CLEAN)
    kept = {}

    def follow(activation, hook):
        kept["x"] = activation.detach().clone().requires_grad_()
        return kept["x"]

    logits = model.run_with_hooks(CORRUPTED, fwd_hooks=[(name, follow)])
    METRIC(logits[:, -1], None).sum().backward()
    products = ((theirs[name] - kept["x"].detach()) * kept["x"].grad).sum(-1)  # [example pos (head)]
    expected = products if site != "z" else products.transpose(1, 2)
    np.testing.assert_allclose(result.estimates[:, 1], expected.numpy(), atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("mlps", ["recomputed", "frozen"])
@pytest.mark.parametrize("receivers", [[(2, 0, "k"), (2, 1, "q")], "logits"])
def test_path_patching_is_the_three_pass_form(model, receivers, mlps):
    result = interp.patch_paths(
        model, CLEAN, CORRUPTED, METRIC, receivers=receivers, senders=[(0, 1), (1, 0)], mlps=mlps
    )
    assert result.engine == "whole"
    ours, theirs = (model.run_with_cache(tokens)[1] for tokens in (CORRUPTED, CLEAN))
    for column, (layer, head) in enumerate([(0, 1), (1, 0)]):

        def freeze(z, hook, layer=layer, head=head):
            frozen = ours[hook.name].clone()
            if hook.name.startswith(f"blocks.{layer}."):
                frozen[:, :, head] = theirs[hook.name][:, :, head]
            return frozen

        hooks = [(f"blocks.{i}.attn.hook_z", freeze) for i in range(3)]
        if mlps == "frozen" and not model.cfg.attn_only:
            hooks += [(f"blocks.{i}.hook_mlp_out", lambda out, hook: ours[hook.name]) for i in range(3)]
        if receivers == "logits":
            logits = model.run_with_hooks(CORRUPTED, fwd_hooks=hooks)
        else:
            seen = {}

            def keep(x, hook, seen=seen):
                seen[hook.name] = x.clone()

            names = [f"blocks.2.attn.hook_{kind}" for kind in "kq"]
            model.run_with_hooks(CORRUPTED, fwd_hooks=hooks + [(name, keep) for name in names])

            def put(x, hook, seen=seen):
                edited = x.clone()
                head = {"k": 0, "q": 1}[hook.name[-1]]
                edited[:, :, head] = seen[hook.name][:, :, head]
                return edited

            logits = model.run_with_hooks(CORRUPTED, fwd_hooks=[(name, put) for name in names])
        np.testing.assert_allclose(result.values[:, column], METRIC(logits[:, -1], None).numpy(), atol=1e-5)


@torch.no_grad()
def test_cut_attention_is_masked_scores(model):
    with interp.knock_out_attention(model, queries=[5, 6], keys=[1, 2], mode="mask", layers=[1]):
        found = model(CLEAN)

    def mask(scores, hook):
        edited = scores.clone()
        edited[:, :, 5:7, 1:3] = -torch.inf
        return edited

    torch.testing.assert_close(found, model.run_with_hooks(CLEAN, fwd_hooks=[("blocks.1.attn.hook_attn_scores", mask)]))
    assert (found - model(CLEAN)).abs().max() > 1e-3


def test_ablated_heads_are_weights_set_to_zero(model):
    with interp.ablate_heads(model, [(0, 1), (2, 0)]):
        found = model(CLEAN)
    edited = copy.deepcopy(model)
    with torch.no_grad():
        edited.blocks[0].attn.W_O[1] = 0
        edited.blocks[2].attn.W_O[0] = 0
    torch.testing.assert_close(found, edited(CLEAN), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_projected_weights_read_the_stream_without_the_subspace():
    model = build()
    basis = torch.linalg.qr(torch.randn(24, 3, generator=derive_generator(0, "basis"))).Q
    edited = copy.deepcopy(model)
    with torch.no_grad():
        edited.blocks[1].attn.W_K[2] -= basis @ (basis.T @ edited.blocks[1].attn.W_K[2])
    with interp.project(model, basis, where="W_K", heads=[(1, 2)]):
        torch.testing.assert_close(model(CLEAN), edited(CLEAN), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_head_scores_are_those_of_the_patterns_and_of_the_gains_on_the_way(model):
    scores = interp.score_heads(model, n_sequences=4, segment=5, seed=2)
    offset, segment = scores.geometry.offset, 5
    assert offset == 0
    found = {name: np.zeros_like(values) for name, values in scores.per_sequence.items()}
    tokens = repeated_tokens(
        n=4, segment=segment, copies=2, vocabulary=torch.arange(31), bos=None, sequences="repeated",
        generator=derive_generator(2, "score_heads", "repeated"),
    )  # fmt: skip
    _, cache = model.run_with_cache(tokens)
    shared = model.cfg.n_heads // (model.cfg.n_key_value_heads or model.cfg.n_heads)
    for layer in range(3):
        pattern = cache["pattern", layer]
        direction = model.W_U.clone()  # [d_model d_vocab]
        for block in list(model.blocks)[layer:]:
            for norm in ("ln1", "ln2"):
                gain = getattr(getattr(block, norm, None), "w", None)
                direction = direction if gain is None else direction * gain[:, None]
        for head in range(model.cfg.n_heads):
            for row in range(4):
                own = pattern[row, head]
                induced = [own[i, i - segment + 1] for i in range(segment, 2 * segment)]
                found["induction/raw"][row, layer, head] = np.mean([float(a) for a in induced])
                previous = [own[i, i - 1] for i in range(2, 2 * segment)]
                found["previous_token/raw"][row, layer, head] = np.mean([float(a) for a in previous])
                raised = torch.zeros(segment, segment)
                for j in range(segment):
                    value = cache["v", layer][row, j, head // shared]
                    raised[j] = value @ model.blocks[layer].attn.W_O[head] @ direction[:, tokens[row, :segment]]
                raised = (raised - raised.mean(1, keepdim=True)).relu()
                share = raised.diagonal() / raised.sum(1)
                found["copying/value_share"][row, layer, head] = ((share - 1 / segment) / (1 - 1 / segment)).mean()
    assert set(scores.per_sequence) == {f"{kind}/{name}" for kind, names in DEFINITIONS.items() for name in names}
    for name in ("induction/raw", "previous_token/raw", "copying/value_share"):
        np.testing.assert_allclose(scores.per_sequence[name], found[name], atol=1e-4)


@torch.no_grad()
def test_confirmed_heads_are_removed_from_whole_runs(model):
    scores = interp.score_heads(model, n_sequences=4, segment=5, seed=2)
    confirmed = interp.confirm_heads(model, scores, heads=[(1, 0)], n_draws=1, n_sequences=4, seed=3)
    tokens = repeated_tokens(
        n=4, segment=5, copies=2, vocabulary=torch.arange(31), bos=None, generator=derive_generator(3, "confirm_heads")
    )
    edited = copy.deepcopy(model)
    edited.blocks[1].attn.W_O[0] = 0
    for whole, found in ((model, confirmed.loss), (edited, confirmed.ablated_loss)):
        losses = -whole(tokens).log_softmax(-1)[:, 5:9].gather(-1, tokens[:, 6:, None])[..., 0].mean(1)
        np.testing.assert_allclose(found, losses.numpy(), atol=1e-5)


@torch.no_grad()
def test_information_flow_is_a_knock_out_for_each_pair_of_roles(model):
    n, length = CLEAN.shape
    last = torch.zeros(n, length, dtype=torch.bool)
    last[:, -1] = True
    batch = Batch(
        tokens=CLEAN, targets=CLEAN.roll(-1, 1), trained=last, scored=last,
        roles={"cue": torch.tensor([[2]] * n), "last": torch.tensor([[length - 1]] * n)},
    )  # fmt: skip
    flow = interp.information_flow(model, batch, n_controls=1)
    assert flow.engine == "whole"
    where = [flow.roles.index(name) for name in ("last", "cue")]
    for layer in range(3):
        with interp.knock_out_attention(model, queries=[length - 1], keys=[2], mode="mask", layers=[layer]):
            logits = model(CLEAN)[:, -1].double().log_softmax(-1)
        expected = logits[torch.arange(n), batch.targets[:, -1]]
        np.testing.assert_allclose(flow.log_prob[:, layer, where[0], where[1]], expected, atol=1e-5)


@torch.no_grad()
def test_choices_are_scored_token_by_token(model):
    items = [
        ChoiceItem(tokens=(1, 2, 3), choices=((4, 5), (6,)), answer=0, text="", choice_texts=("", "")),
        ChoiceItem(tokens=(3, 1, 2), choices=((7,), (8, 9)), answer=1, text="", choice_texts=("", "")),
    ]
    found, _ = ChoiceRuns(model, items).run([(1, 0)])
    with interp.ablate_heads(model, [(1, 0)]):
        for row, item in enumerate(items):
            for column, choice in enumerate(item.choices):
                logits = model(torch.tensor([item.tokens + choice]))[0].log_softmax(-1)
                start = len(item.tokens) - 1
                expected = sum(float(logits[start + i, token]) for i, token in enumerate(choice))
                assert found[row, column] == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("layer", [0, 1])
def test_cut_circuits_answer_as_whole_runs_do(layer):
    task = dropped_pairs().with_last_free()
    model = interp.build(
        n_layers=2, d_model=16, n_heads=2, d_vocab=120, n_ctx=9, gamma=0.2, seed=1, device="cpu", **VASWANI
    )
    batch = task.sample(24, split="train", seed=0)
    batch = replace(batch, targets=model(batch.tokens).argmax(-1))  # so that a cut is what makes an answer wrong
    edges = torch.zeros(24, 9, 9, dtype=torch.bool)
    edges[:, -1, 3:5] = True
    found = CutRuns(model, batch, mode="mask", n_controls=1, seed=0).answer([{layer: edges}])[0]
    with interp.knock_out_attention(model, queries=[8], keys=[3, 4], mode="mask", layers=[layer]):
        logits = model(batch.tokens)[batch.scored]
    expected = (logits.argmax(-1) == batch.targets[batch.scored]).double()
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(found, expected.numpy())


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_there_is_no_final_gain(model):
    assert torch.equal(final_norm_gain(model), torch.ones(24))


def test_shortcuts_are_left_alone(model):
    assert not can_skip(model)
    assert can_skip(interp.build(**SHAPE, act_fn="relu", positions="sinusoidal", embedding_scale="sqrt_d_model"))


def test_weights_are_not_folded():
    model = build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for refused in (
        lambda: model.process_weights_(),
        lambda: model.load_and_process_state_dict(model.state_dict(), fold_ln=False),
        lambda: model.fold_layer_norm(model.state_dict()),
        lambda: model.center_writing_weights(model.state_dict()),
    ):
        with pytest.raises(
            InputError, match="PostNormTransformer can't be folded or centred: its norms stand after the su"
        ):
            refused()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_what_takes_the_stream_for_a_sum_is_refused():
    model = build()
    with (
        pytest.raises(
            InputError, match="normalised after its heads are summed, so one head's part of the stream can't be"
        ),
        interp.ablate_heads(model, [(0, 1)], into="logits"),
    ):
        model(CLEAN)
    for refused in (
        lambda: read_factors(model, 0),
        lambda: read_factors(model, 1, fold="none"),
        lambda: interp.find_bridge(model, [(1, 0)]),
        lambda: interp.copying_eigenvalues(model),
        lambda: interp.score_pairs(model),
        lambda: interp.sweep_bridge(model, induction_heads=[(1, 0)], segment=5, n_sequences=2),
        lambda: interp.shuffle_heads(model, [(1, 0), (2, 0)], side="QK", segment=5),
        lambda: interp.compare_part_bridges(model, [(1, 0), (2, 0)]),
        lambda: interp.compare_induction(model, n_sequences=2, segment=5),
    ):
        with pytest.raises(
            InputError, match="The weights of a PostNormTransformer can't be put into factors: what a layer"
        ):
            refused()


@pytest.mark.parametrize("switch", ["use_split_qkv_input", "use_attn_in", "use_hook_mlp_in"])
def test_inputs_behind_a_norm_do_not_exist(switch):
    model = build()
    getattr(model, f"set_{switch}")(True)
    with pytest.raises(
        InputError, match=f"{switch}=True has no meaning in a block with norm_placement='post': leave it"
    ):
        model(CLEAN)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_placement": "past"}, "norm_placement='past' is not known: choose one of pre, post"),
        ({"positions": "fixed"}, "positions='fixed' is not known: choose one of learned, sinusoidal"),
        ({"embedding_scale": "d_model"}, "embedding_scale='d_model' is not known: choose one of one, sqrt_d_model"),
        (
            {"norm_placement": "post", "normalization_type": None},
            "norm_placement='post' needs norms, but normalization_type is None: give 'LN' or 'RMS'",
        ),
        ({"norm_placement": "post", "parallel_attn_mlp": True}, "parallel_attn_mlp=True has no meaning in a block with norm"),
        ({"norm_placement": "post", "positional_embedding_type": "shortformer"}, "can't be combined with the blocks of sho"),
        ({"norm_placement": "post", "original_architecture": "Olmo2ForCausalLM"}, "with the blocks of Olmo2ForCausalLM"),
        (
            {"positions": "sinusoidal", "positional_embedding_type": "rotary", "rotary_dim": 8},
            "positions='sinusoidal' are added to the embeddings, but positional_embedding_type='rotary' has positions of ano",
        ),
        ({"positions": "learned", "positional_embedding_type": "alibi"}, "positions='learned' are added to the embedding"),
        ({"embedding_scale": "sqrt_d_model", "post_embedding_ln": True}, "embedding_scale does nothing with post_embedding"),
        ({"norm_placment": "post"}, "'norm_placment' is not a field of a model's configuration; did you mean norm_placemen"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_said_in_one_sentence(changes, message):
    with as_without_type_checks(), pytest.raises(InputError, match=message):
        interp.build(**SHAPE | {"act_fn": "relu"} | changes)


def test_a_checkpoint_of_an_unknown_architecture(tmp_path):
    interp.save(build(), tmp_path / "one")
    path = tmp_path / "one" / "interp.json"
    description = json.loads(path.read_text())
    description["architecture"]["norm_placement"] = "sideways"
    path.write_text(json.dumps(description))
    with as_without_type_checks(), pytest.raises(InputError, match="norm_placement='sideways' is not known"):
        interp.load(tmp_path / "one")
