"""Indirect objects in the report: a machine of three known heads, a model that guesses, and models that can't be asked."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import interp
from analyses.analysis import Options, Subject
from analyses.headlines import pick_headlines
from analyses.patching import PATCHING
from analyses.patching_heads import EDGES, name_edge, read_heads
from analyses.patching_removal import HeadRemoval, remove_heads
from analyses.registry import DEFAULT, choose_analyses
from analyses.runner import Ask, claim_folder, run_asks
from tasks.prompts import IOI
from tests.analyses.receiver import DIFFERENCE, build_receiver_machine, make_words
from tests.conftest import make_tokenizer

N_QUICK = 24


@pytest.fixture(scope="module")
def machine():
    return build_receiver_machine()


def ask(model, folder):
    """The rows and the page of a quick report."""
    subject = Subject(model=model, provenance=interp.get_provenance(model))
    asks = [Ask(name="machine", load=lambda: subject, analyses=tuple(choose_analyses(["patching"])))]
    run_asks(asks, claim_folder(folder, {"models": ["machine"]}), options=Options(quick=True), command="c", title="t")
    return pd.read_parquet(folder / "results.parquet"), (folder / "report.html").read_text()


@pytest.fixture(scope="module")
def reported(machine, tmp_path_factory):
    return ask(machine, tmp_path_factory.mktemp("runs") / "machine")


def test_the_behaviour_and_its_control(reported):
    rows = reported[0].set_index(["metric", reported[0]["control"].fillna("")])
    value = rows["value"]
    assert value["accuracy", ""] == value["prefers_io", ""] == 1
    assert value["logit_difference", ""] == pytest.approx(DIFFERENCE, abs=1e-4)
    assert value["logit_difference", "three unrelated names"] == pytest.approx(0, abs=1e-4)
    assert value["accuracy", "three unrelated names"] == 0
    assert value["prefers_io", "chance"] == 0.5
    assert rows["n"]["accuracy", ""] == N_QUICK


def test_the_sweeps_name_the_three_heads_and_the_way_of_the_answer(reported):
    rows = reported[0]
    heads = rows[rows["metric"].str.startswith("recovery, z")]
    found = {(row.metric[-4:].split()[-1], row.layer, row["head"]): row.value for _, row in heads.iterrows()}
    carriers = {("S2", 0, 0), ("last", 1, 0), ("last", 2, 0)}
    for place, value in found.items():
        assert value == pytest.approx(float(place in carriers), abs=1e-4), place
    stream = rows[rows["metric"].str.startswith("recovery, resid_pre")]
    carried = {(row.metric.split()[-1], row.layer) for _, row in stream.iterrows() if row.value > 0.5}
    assert carried == {("S2", 0), ("S2", 1), ("last", 2)}
    assert set(stream["value"].round(4)) == {0.0, 1.0}


def test_the_answer_goes_with_them_and_not_with_others(reported):
    rows, page = reported
    named = rows[rows["metric"] == "share of the logit difference"]
    share = named.set_index(named["control"].fillna(""))["value"]
    assert share[""] == pytest.approx(1, abs=1e-4)
    assert share["random heads of the same layers"] == pytest.approx(0, abs=1e-6)
    assert rows[rows["metric"].str.startswith("p-value")]["value"].item() == pytest.approx(1 / 21)
    assert "ranks that name above the giver&#39;s in 100%" in page
    assert "Strongest is 0.0, which at S2 alone brings back 100% [100%, 100%] of it." in page
    assert "Up to layer 1 more than half of the answer is where the giver is met again; from layer 2 on" in page
    assert "Of its logit difference the 3 heads that patching finds carry 100%" in page
    assert "Random heads of the same layers carry 0%" in page
    assert page.count("<svg") >= 4


def test_the_table_says_what_each_head_looks_at(reported):
    rows = reported[0].set_index(["metric", "layer"])["value"]
    assert rows["attention, S2 to S1", 0] == pytest.approx(1, abs=1e-4)
    assert rows["attention, last to S2", 1] == pytest.approx(1, abs=1e-4)
    assert rows["attention, last to IO", 2] == pytest.approx(1, abs=1e-4)
    direct = [rows["direct effect", layer] for layer in range(3)]
    assert direct == pytest.approx([0, 0, DIFFERENCE], abs=1e-4)


def test_the_first_numbers_stand_beside_their_controls(reported):
    found = {line.what: (line.value, line.control_value) for line in pick_headlines(reported[0])}
    assert found["receiver's name above every token"] == (1, 0)
    assert found["share of it that the top heads carry"] == pytest.approx((1, 0), abs=1e-4)
    assert found["p-value of that share, over draws"][0] == pytest.approx(1 / 21)


def test_a_model_that_guesses_is_not_swept(tmp_path):
    tokenizer = make_words()
    model = interp.build(n_layers=1, d_model=16, n_heads=2, d_vocab=len(tokenizer), n_ctx=48, seed=0)
    model.tokenizer = tokenizer
    rows, page = ask(model, tmp_path / "run")
    assert set(rows["metric"]) == {"accuracy", "prefers_io", "logit_difference"}
    assert "doesn&#39;t tell the two people apart" in page
    assert "so nothing was patched" in page


def test_removal_equals_one_hooked_pass_a_condition(both):
    for model in both:
        prompts = _short_prompts(model)
        result = remove_heads(model, prompts, [(0, 1), (1, 4)], n_draws=2, seed=0)
        wrong = prompts.corrupted["unrelated"]
        for heads, values in ((result.heads, result.removed), *zip(result.control_heads, result.control, strict=True)):
            for row in range(len(prompts)):
                one = slice(row, row + 1)
                kept = {}
                for layer in range(2):  # a bridge calls its hooks by other names, so each layer has its own

                    def keep(z, hook, kept=kept, layer=layer):
                        kept[layer] = z.clone()

                    model.run_with_hooks(wrong[one], fwd_hooks=[(f"blocks.{layer}.attn.hook_z", keep)])

                def write(z, hook, kept=kept, layer=0, chosen=()):
                    z = z.clone()
                    z[:, :, list(chosen)] = kept[layer][:, :, list(chosen)]
                    return z

                hooks = [
                    (
                        f"blocks.{layer}.attn.hook_z",
                        partial(write, layer=layer, chosen=[h for at, h in heads if at == layer]),
                    )
                    for layer in range(2)
                ]
                logits = model.run_with_hooks(prompts.tokens[one], fwd_hooks=hooks).detach()
                last = logits[0, int(prompts.roles["last"][row])]
                expected = float(last[prompts.io[row]] - last[prompts.s[row]])
                assert values[row] == pytest.approx(expected, abs=2e-5)


def test_direct_effects_and_the_embedding_make_up_the_logit_difference():
    tokenizer = make_words()
    for normalization in ("LN", "RMS", None):
        model = interp.build(
            n_layers=2, d_model=24, n_heads=3, d_vocab=len(tokenizer), n_ctx=48, attn_only=True,
            normalization_type=normalization,
        )  # fmt: skip
        model.tokenizer = tokenizer
        prompts = IOI(tokenizer).sample(6, seed=0)
        reads = read_heads(model, prompts)
        logits, cache = model.run_with_cache(prompts.tokens)
        rows, last = torch.arange(6), prompts.roles["last"][:, 0]
        expected = logits[rows, last, prompts.io] - logits[rows, last, prompts.s]
        embedding = cache["blocks.0.hook_resid_pre"][rows, last]
        final = cache["blocks.1.hook_resid_post"][rows, last]
        if normalization == "LN":
            embedding, final = (x - x.mean(-1, keepdim=True) for x in (embedding, final))
        scale = 1.0 if normalization is None else (final.square().mean(-1, keepdim=True) + model.cfg.eps).sqrt()
        direction = (model.W_U[:, prompts.io] - model.W_U[:, prompts.s]).T
        rest = (embedding / scale * direction).sum(-1)
        total = reads["direct effect"].sum(axis=(1, 2)) + rest.detach().numpy()
        np.testing.assert_allclose(total, expected.detach().numpy(), atol=1e-5)
        for query, key in EDGES:
            for row in range(6):
                at = (int(prompts.roles[role][row]) for role in (query, key))
                i, j = at
                theirs = torch.stack([cache["pattern", layer][row, :, i, j] for layer in range(2)])
                np.testing.assert_allclose(reads[name_edge(query, key)][row], theirs.detach().numpy(), atol=1e-6)


def test_a_bridge_reads_the_same(both):
    hooked, bridge = both
    prompts = _short_prompts(hooked)
    ours, theirs = read_heads(hooked, prompts), read_heads(bridge, prompts)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], atol=1e-4)


def _short_prompts(model):
    """Four sentences in the ids of a model of 97 tokens: only their roles matter here."""
    prompts = IOI(make_words()).sample(4, seed=0)
    return replace(
        prompts,
        tokens=prompts.tokens % model.cfg.d_vocab,
        corrupted={kind: tokens % model.cfg.d_vocab for kind, tokens in prompts.corrupted.items()},
        io=prompts.io % model.cfg.d_vocab,
        s=prompts.s % model.cfg.d_vocab,
    )


def test_the_share_and_its_control_from_known_numbers():
    whole = np.array([4.0, 2.0, 6.0, 4.0])
    result = HeadRemoval(
        heads=((0, 0),),
        whole=whole,
        removed=0.25 * whole,
        control_heads=tuple(((0, head),) for head in range(1, 20)),
        control=np.tile(whole, (19, 1)),
        seed=0,
    )
    assert result.share == pytest.approx((0.75, 0.75, 0.75))
    assert result.control_share == pytest.approx((0, 0, 0))
    assert result.difference[0] == pytest.approx(0.75)
    assert (result.p_value, result.confirmed) == (0.05, True)
    few = HeadRemoval(
        heads=result.heads, whole=whole, removed=result.removed, control_heads=result.control_heads[:5],
        control=result.control[:5], seed=0,
    )  # fmt: skip
    assert not few.confirmed


def test_models_that_cannot_be_asked_say_why(machine):
    def refuse(model):
        return PATCHING.applies(Subject(model=model, provenance=interp.get_provenance(model)))

    assert refuse(machine) is None
    size = {"d_model": 8, "d_vocab": 97, "attn_only": True}
    model = interp.build(n_layers=2, n_heads=2, n_ctx=48, **size)
    assert "the model has no tokenizer, so no sentence can be put to it" in refuse(model)
    model.tokenizer = make_tokenizer()
    assert "first names as one token" in refuse(model)
    assert "has one head" in refuse(interp.build(n_layers=1, n_heads=1, n_ctx=48, **size))
    assert "reads 16 tokens at most" in refuse(interp.build(n_layers=2, n_heads=2, n_ctx=16, **size))
    assert "patching" in DEFAULT
