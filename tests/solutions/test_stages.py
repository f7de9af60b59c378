"""Models with idle layers are named as if those weren't there."""

import numpy as np
import pytest
import torch

import interp
from interp.errors import InputError
from interp.solutions.circuits import CIRCUITS, Circuit, leave_last_free, list_layers, spread_circuit, spread_complement
from interp.solutions.classify import classify_solution
from interp.solutions.cutting import CutRuns
from interp.solutions.mechanism import measure_mechanism
from interp.solutions.stages import cut_last_token, find_second_stage
from interp.solutions.thresholds import Thresholds
from tasks.anchor import dropped_pairs
from tests.solutions.machines import WIRINGS, build_machine, make_task
from tests.untyped import as_without_type_checks

IDLE = {"behind": {"behind": 1}, "in front": {"in_front": 1}, "on both sides": {"in_front": 1, "behind": 2}}
SECOND = {"behind": 1, "in front": 2, "on both sides": 2}
SIZE = {"n": 16, "n_controls": 2}


@pytest.fixture(scope="module")
def deep():
    return interp.build(n_layers=4, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True, device="cpu")


def shares(*values, n=100):
    return np.stack([(np.arange(n) < round(n * value)).astype(float) for value in values], axis=1)


@pytest.mark.parametrize(("where", "mode"), [*((where, "mask") for where in IDLE), ("on both sides", "zero")])
@pytest.mark.parametrize("name", list(WIRINGS))
def test_idle_layers_do_not_change_the_name(name, where, mode):
    found = measure_mechanism(build_machine(WIRINGS[name], **IDLE[where]), make_task(), mode=mode, **SIZE)
    assert (found.label, found.second_stage) == (name, SECOND[where])
    assert found.without_last[:, SECOND[where]].mean() < 0.1
    assert found.without_last[:, SECOND[where] + 1 :].all()
    sufficient = {circuit for circuit in CIRCUITS if found.is_sufficient(circuit)}
    assert sufficient == (set() if name == "distributed" else {name, "hybrid"})


@pytest.mark.parametrize("name", ["parallel", "serial", "symmetric"])
def test_with_the_last_layer_as_second_stage_an_idle_one_hides_the_circuit(name):
    machine = build_machine(WIRINGS[name], behind=1)
    last = measure_mechanism(machine, make_task(), second_stage="last", **SIZE)
    assert (last.label in ("hybrid", "distributed"), last.is_sufficient(name)) == (True, False)
    given = measure_mechanism(machine, make_task(), second_stage=1, **SIZE)
    assert (given.label, given.without_last) == (name, None)


def test_with_two_layers_the_second_stage_is_the_last_without_looking():
    machine = build_machine(WIRINGS["parallel"])
    found, last = (classify_solution(machine, make_task(), second_stage=stage, **SIZE) for stage in ("found", "last"))
    assert found.to_frame().equals(last.to_frame())
    assert found.mechanism.without_last is None
    assert "second stage" not in repr(found.mechanism)


def test_both_kinds_of_cut_have_the_same_second_stage_and_the_names_of_its_layers():
    solution = classify_solution(build_machine(WIRINGS["serial"], behind=2), make_task(), **SIZE)
    assert solution.agrees
    assert {mechanism.second_stage for mechanism in solution.mechanisms.values()} == {1}
    told = repr(solution.mechanism)
    assert "second stage from layer 1 of 4 on, where cutting all of the last token's edges leaves 0.0" in told
    layers = solution.mechanism.to_frame().set_index(["intervention", "edges"])["layers"]
    assert layers["cut", "key → anchors, before the last layer"] == "0"
    assert layers["cut", "anchors → last, last layer"] == "1–3"
    assert layers["cut", "serial"] == "0–3"
    texts = [label.get_text() for axes in solution.figure().axes for label in axes.get_yticklabels()]
    assert {"key → anchors, before layer 1", "anchors → last, from layer 1 on", "serial circuit"} <= set(texts)
    assert not any("last layer" in text for text in texts)


@pytest.mark.parametrize(
    ("left", "uncut", "layer"),
    [
        ((1, 0, 1, 1), 1, 1),
        ((1, 0, 0.5, 1), 1, 2),
        ((1, 0, 0.51, 1), 1, 1),
        ((0, 1, 1, 1), 1, 3),  # layer 0 leaves no layer for a first stage; no other is needed
        ((1, 0.2, 0.3, 0.4), 0.6, 2),  # relative to the accuracy
        ((0, 0, 0.4, 0.4), 0.4, 3),  # no answer to look for
        ((0, 1), 1, 1),
        ((1, 0), 1, 1),
    ],
)
def test_the_second_stage_is_the_last_layer_in_which_the_last_token_must_read(left, uncut, layer):
    assert find_second_stage(shares(*left), uncut=uncut, thresholds=Thresholds()) == layer


def test_thresholds_move_the_second_stage():
    assert find_second_stage(shares(1, 0, 0.6), uncut=1, thresholds=Thresholds()) == 1
    assert find_second_stage(shares(1, 0, 0.6), uncut=1, thresholds=Thresholds(needed=0.6)) == 2


@pytest.mark.parametrize("mode", ["mask", "zero"])
def test_what_is_left_without_the_last_tokens_edges_is_that_of_plain_runs(mode):
    model = interp.build(
        n_layers=3, d_model=16, n_heads=2, d_vocab=120, n_ctx=9, d_mlp=24, act_fn="gelu", gamma=0.1, device="cpu"
    )
    batch = leave_last_free(dropped_pairs(), split="train", n=30, seed=0)
    batch.targets[:, -1] = model(batch.tokens)[:, -1].argmax(-1)  # so that every answer is right
    hook, filler = {"mask": ("attn_scores", -torch.inf), "zero": ("pattern", 0.0)}[mode]

    def edit(activation, hook):
        activation[:, :, -1, :-1] = filler
        return activation

    left = cut_last_token(CutRuns(model, batch, mode=mode, n_controls=1, seed=0))
    for layer in range(3):
        logits = model.run_with_hooks(batch.tokens, fwd_hooks=[(f"blocks.{layer}.attn.hook_{hook}", edit)])
        assert left[:, layer].tolist() == (logits[:, -1].argmax(-1) == batch.targets[:, -1]).double().tolist()
    assert 0 < left.mean() < 1


def test_a_circuit_has_its_edges_in_the_layers_of_its_stages(deep):
    batch = leave_last_free(dropped_pairs(), split="train", n=5, seed=0)
    serial = CIRCUITS["serial"]
    for second_stage in (1, 2, 3):
        spread = spread_circuit(deep, batch, serial, second_stage=second_stage)
        alone = {
            stage: spread_circuit(deep, batch, Circuit(**{stage: getattr(serial, stage)}))
            for stage in ("first", "last")
        }
        for layer, edges in spread.items():
            assert torch.equal(edges, alone["first"][0] if layer < second_stage else alone["last"][3])
        cut = spread_complement(deep, batch, serial, second_stage=second_stage)
        before = torch.ones(9, 9, dtype=torch.bool).tril(-1).expand(5, 9, 9)
        assert all(torch.equal(cut[layer] ^ spread[layer], before) for layer in range(4))
    assert list(list_layers(Circuit(first=serial.first), n_layers=4, second_stage=3)) == [0, 1, 2]
    assert list(list_layers(Circuit(last=serial.last), n_layers=4, second_stage=1)) == [1, 2, 3]


@pytest.mark.parametrize("second_stage", [0, 4, -1, "first"])
def test_what_is_no_second_stage_is_refused(deep, second_stage):
    text = f"second_stage={second_stage!r} is no layer with another before it; give 1 to 3, 'found' or 'last'"
    for measure in (measure_mechanism, classify_solution):
        with as_without_type_checks(), pytest.raises(InputError, match=text):
            measure(deep, dropped_pairs(), second_stage=second_stage, **SIZE)
