import numpy as np
import pytest
import torch

import interp
from interp.errors import InputError
from interp.solutions.circuits import (
    CIRCUITS,
    cut_edges,
    find_edges,
    leave_last_free,
    spread_circuit,
    spread_complement,
)
from interp.solutions.classify import classify_solution
from interp.solutions.cutting import CutRuns
from interp.solutions.mechanism import CUTS, Mechanism, measure_mechanism
from interp.solutions.thresholds import Thresholds
from tasks.anchor import Composite, composition, dropped_pairs
from tests.solutions.machines import WIRINGS, build_machine, make_task
from tests.untyped import as_without_type_checks

PARALLEL_CUTS = {"key → anchors, before the last layer", "anchors → last, last layer", "parallel", "hybrid"}
NEEDED = {
    # The serial circuit shares edges with it and can't be cut without harm either, but the edges that carry as much
    # attention are then the rest of the parallel one: no more than random.
    "parallel": PARALLEL_CUTS,
    "serial": {*PARALLEL_CUTS, "anchor 1 → anchor 2, before the last layer", "serial"},
    "symmetric": {"anchors → last, before the last layer", "key → last, last layer", "symmetric", "hybrid"},
}


def count_hooks(model):
    return sum(len(hook.fwd_hooks) for hook in model.hook_dict.values())


@pytest.fixture(scope="module")
def machines():
    return {name: build_machine(wiring) for name, wiring in WIRINGS.items()}


@pytest.fixture(scope="module")
def with_mlp():
    return interp.build(
        n_layers=3, d_model=16, n_heads=2, d_vocab=120, n_ctx=9, d_mlp=24, act_fn="gelu", gamma=0.1, device="cpu"
    )


@pytest.fixture(scope="module", params=["mask", "zero"])
def measured(request, machines):
    return {
        name: measure_mechanism(machine, make_task(), mode=request.param, n=50, n_controls=8)
        for name, machine in machines.items()
    }


@pytest.mark.parametrize("name", list(WIRINGS))
def test_a_machine_is_named_by_the_circuit_that_was_built_into_it(measured, name):
    mechanism = measured[name]
    assert mechanism.uncut.mean() == 1
    assert mechanism.label == name
    sufficient = {circuit for circuit in CIRCUITS if mechanism.is_sufficient(circuit)}
    assert sufficient == (set() if name == "distributed" else {name, "hybrid"})
    if name in NEEDED:
        assert {edges for edges in mechanism.cut if mechanism.is_needed(edges)} == NEEDED[name]
    if name == "distributed":
        assert all(values.mean() == 1 for values in mechanism.cut.values())


def test_the_answer_follows_other_anchors_as_soon_as_the_last_token_has_them(measured):
    followed = {name: mechanism.followed.mean(axis=0).tolist() for name, mechanism in measured.items()}
    assert followed.pop("hybrid")[0] < 0.6  # the last token has one of the anchors only
    late = ["parallel", "serial", "distributed"]
    assert followed == {name: [0, 1] for name in late} | {"symmetric": [1, 1]}


def test_a_model_that_cannot_answer_has_no_mechanism():
    model = interp.build(n_layers=2, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True, device="cpu")
    assert measure_mechanism(model, make_task(), n=20, n_controls=2).label == "none"


def test_behaviour_and_mechanism_are_two_answers(machines):
    task = make_task()
    parallel = classify_solution(machines["parallel"], task, n=40, n_controls=3)
    assert (parallel.behaviour.label, parallel.mechanism.label, parallel.agrees) == ("reasoning", "parallel", True)
    assert parallel.cuts_agree
    symmetric = classify_solution(machines["symmetric"], task, n=40, n_controls=3)
    assert (symmetric.behaviour.label, symmetric.mechanism.label, symmetric.agrees) == ("reasoning", "symmetric", False)
    assert "mechanism symmetric, which don't usually go together" in repr(symmetric)
    frame = symmetric.to_frame()
    assert frame["evidence"].unique().tolist() == ["behaviour", "mechanism, mask", "mechanism, zero"]
    assert "zero" in repr(symmetric.mechanisms["zero"])


def make_mechanism(*, kept=None, cut=None, control=1.0, control_mass=1.0, uncut=1.0, **fields) -> Mechanism:
    """Every circuit useless when kept and harmless when cut, except as given."""
    shares = dict.fromkeys(CIRCUITS, 0.0) | (kept or {})
    left = dict.fromkeys([*CUTS, *CIRCUITS], 1.0) | (cut or {})
    return Mechanism(
        split="train", mode="mask", seed=0, uncut=_share(uncut),
        cut={name: _share(value) for name, value in left.items()},
        cut_mass={name: np.ones(2) for name in left},
        cut_control={name: np.full(5, control) for name in left},
        control_mass={name: np.full((5, 2), control_mass) for name in left},
        kept={name: _share(value) for name, value in shares.items()},
        kept_control={name: np.full(5, 0.05) for name in shares},
        followed=np.zeros((20, 2)), **fields,
    )  # fmt: skip


def _share(value: float) -> np.ndarray:
    return (np.arange(100) < round(100 * value)).astype(float)


@pytest.mark.parametrize(
    ("evidence", "label"),
    [
        ({"kept": {"serial": 0.8}, "cut": {"serial": 0.5}}, "serial"),
        ({"kept": {"serial": 0.79}, "cut": {"serial": 0.5}}, "distributed"),
        ({"kept": {"serial": 0.8}, "cut": {"serial": 0.51}}, "hybrid"),  # sufficient, but not needed
        ({"kept": {"serial": 0.8, "parallel": 0.9}, "cut": {"serial": 0.0, "parallel": 0.0}}, "hybrid"),
        ({"kept": {"hybrid": 0.9}, "cut": {"hybrid": 0.0}}, "hybrid"),
        ({"kept": {"parallel": 0.9}, "cut": {"parallel": 0.3}, "control": 0.3}, "hybrid"),  # no more than random edges
        ({"kept": {"parallel": 0.9}, "cut": {"parallel": 0.3}, "control": 0.3, "control_mass": 0.5}, "parallel"),
        ({"kept": {"parallel": 0.4}, "cut": {"parallel": 0.25}, "uncut": 0.5}, "parallel"),
        ({"kept": {"parallel": 0.49}, "cut": {"parallel": 0.0}, "uncut": 0.49}, "none"),
    ],
)
def test_a_label_follows_from_what_suffices_and_what_is_needed(evidence, label):
    assert make_mechanism(**evidence).label == label


def test_thresholds_can_be_given():
    evidence = {"kept": {"serial": 0.7}, "cut": {"serial": 0.3}}
    assert make_mechanism(**evidence).label == "distributed"
    assert make_mechanism(**evidence, thresholds=Thresholds(sufficient=0.6)).label == "serial"


def test_the_table_says_what_is_needed_what_suffices_and_how_far_the_control_goes(machines):
    frame = measure_mechanism(machines["serial"], make_task(), n=40, n_controls=19).to_frame()
    rows = frame.set_index(["intervention", "edges"])
    assert rows.loc[("cut", "serial"), "verdict"] == "needed"
    assert rows.loc[("kept alone", "serial"), "verdict"] == "sufficient"
    assert rows.loc[("kept alone", "serial"), ["accuracy", "low", "high", "p"]].tolist() == [1, 1, 1, 0.05]
    cut = rows.loc[("cut", "anchors → last, last layer")]
    assert (cut["mass"], cut["n"]) == (pytest.approx(1), 40)
    assert cut["control_mass"] == pytest.approx(0, abs=1e-6)  # the last query reads nothing else
    assert not rows.loc[("uncut", ""), ["mass", "control", "p"]].notna().any()


def test_edges_between_roles_are_those_of_a_loop_over_rows_and_roles():
    task = dropped_pairs()
    batch = leave_last_free(task, split="train", n=25, seed=0)
    model = interp.build(n_layers=3, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True, device="cpu")
    for circuit in CIRCUITS.values():
        for layer, found in spread_circuit(model, batch, circuit).items():
            wanted = torch.zeros(len(batch.tokens), 9, 9, dtype=torch.bool)
            for row in range(len(batch.tokens)):
                for query, key in circuit.last if layer == 2 else circuit.first:
                    wanted[row, int(batch.roles[query][row, 0]), int(batch.roles[key][row, 0])] = True
            assert torch.equal(found, wanted)
            complement = spread_complement(model, batch, circuit)[layer]
            assert torch.equal(complement | found, torch.ones(9, 9, dtype=torch.bool).tril(-1).expand_as(found))
            assert not (complement & found).any()


def test_an_edge_that_would_lead_forward_or_to_itself_is_none():
    batch = make_task().sample(4, split="train", seed=0)
    assert not find_edges(batch, (("key", "anchor_1"), ("anchor_1", "anchor_1"))).any()


def test_rows_in_which_the_last_token_is_an_anchor_are_left_out():
    batch = leave_last_free(dropped_pairs(n_sequences=50), split="train", n=40, seed=0)
    assert len(batch.tokens) == 40
    assert int(batch.roles["anchor_2"].max()) == 7
    trained = {tuple(row) for row in dropped_pairs(n_sequences=50).sample(900, split="train", seed=1).tokens.tolist()}
    assert {tuple(row) for row in batch.tokens.tolist()} <= trained


@pytest.mark.parametrize("mode", ["mask", "zero"])
def test_answers_are_those_of_plain_runs_with_the_attention_edited_row_by_row(with_mlp, mode):
    batch = leave_last_free(dropped_pairs(), split="train", n=12, seed=0)
    runs = CutRuns(with_mlp, batch, mode=mode, n_controls=3, seed=0)
    hook, filler = {"mask": ("attn_scores", -torch.inf), "zero": ("pattern", 0.0)}[mode]
    answers = with_mlp(batch.tokens)[:, -1].argmax(-1)
    batch.targets[::2, -1] = answers[::2]  # so that some answers are right
    assert runs.answer([{}])[0].tolist() == [1, 0] * 6
    for circuit in (CIRCUITS["serial"], CUTS["anchors → last, last layer"]):
        edges = spread_circuit(with_mlp, batch, circuit)
        draws = runs.draw_cuts("some", edges)
        cuts = [edges, *({layer: drawn[i] for layer, drawn in draws.items()} for i in range(3))]
        for cut, found in zip(cuts, runs.answer(cuts), strict=True):
            for row in range(len(batch.tokens)):

                def edit(activation, hook, cut=cut, row=row):
                    edited = activation.clone()
                    for query, key in cut[int(hook.name.split(".")[1])][row].nonzero().tolist():
                        edited[0, :, query, key] = filler
                    return edited

                hooks = [(f"blocks.{layer}.attn.hook_{hook}", edit) for layer in cut]
                logits = with_mlp.run_with_hooks(batch.tokens[row : row + 1], fwd_hooks=hooks)
                assert found[row] == float(logits[0, -1].argmax() == batch.targets[row, -1])
    assert count_hooks(with_mlp) == 0


def test_random_cuts_carry_the_same_attention_and_none_of_the_edges():
    model = interp.build(n_layers=3, d_model=16, n_heads=2, d_vocab=120, n_ctx=9, attn_only=True, device="cpu")
    batch = leave_last_free(dropped_pairs(), split="train", n=200, seed=0)
    runs = CutRuns(model, batch, mode="mask", n_controls=20, seed=0)
    edges = spread_circuit(model, batch, CIRCUITS["serial"])
    for layer, draws in runs.draw_cuts("serial", edges).items():
        assert draws.shape == (20, 200, 9, 9)
        assert not (draws & edges[layer]).any()
        assert not draws.triu(1).any()
        assert (~draws & torch.ones(9, 9, dtype=torch.bool).tril()).any(-1).all()  # every query keeps a key
        if layer == 2:
            assert not draws[:, :, :8].any()  # in the last layer only the last token's edges matter
        carried = float((runs.mass[layer] * draws).sum((-1, -2)).mean())
        wanted = float((runs.mass[layer] * edges[layer]).sum((-1, -2)).mean())
        assert carried == pytest.approx(wanted, rel=0.03)
        assert runs.weigh({layer: edges[layer]})[layer] == pytest.approx(wanted)


def test_random_circuits_keep_as_many_edges_in_every_layer(with_mlp):
    batch = leave_last_free(dropped_pairs(), split="train", n=30, seed=0)
    runs = CutRuns(with_mlp, batch, mode="mask", n_controls=10, seed=0)
    before = torch.ones(9, 9, dtype=torch.bool).tril(-1)
    draws = runs.draw_keeps("parallel", spread_complement(with_mlp, batch, CIRCUITS["parallel"]))
    for layer, cut in draws.items():
        kept = before & ~cut
        assert (kept.sum((-1, -2)) == 2).all()
        assert not cut.diagonal(dim1=-2, dim2=-1).any()
        if layer == 2:
            assert not kept[:, :, :8].any()
        assert len(kept.flatten(2).unique(dim=1)[0]) > 5  # drawn anew for every sequence


def test_nothing_is_left_behind_and_seeds_decide(with_mlp):
    before = {name: parameter.clone() for name, parameter in with_mlp.named_parameters()}
    one, again, other = (measure_mechanism(with_mlp, dropped_pairs(), n=20, n_controls=3, seed=s) for s in (0, 0, 1))
    assert one.to_frame().equals(again.to_frame())
    assert not one.to_frame().equals(other.to_frame())
    assert count_hooks(with_mlp) == 0
    assert all(torch.equal(before[name], parameter) for name, parameter in with_mlp.named_parameters())


def test_hooks_go_when_the_block_raises(with_mlp):
    batch = leave_last_free(dropped_pairs(), split="train", n=5, seed=0)
    with pytest.raises(KeyError), cut_edges(with_mlp, spread_circuit(with_mlp, batch, CIRCUITS["serial"]), mode="mask"):
        raise KeyError
    assert count_hooks(with_mlp) == 0


@pytest.mark.parametrize(
    ("task", "options", "text"),
    [
        (composition(), {}, "the key stands behind its anchors .key_offset=2., where no anchor can read it"),
        (Composite(group_size=1), {}, "circuits are those of two anchors, but 'composite' has 1 in a sequence"),
        (
            Composite(group_size=3, first_key=30),
            {},
            "circuits are those of two anchors, but 'composite' has 3 in a sequence",
        ),
        (Composite(d_vocab=150), {}, "has 150 tokens and sequences of 9, but the model has d_vocab=120 and n_ctx=9"),
        (
            Composite(key_positions=(6,)),
            {},
            "the last token is the key or an anchor, so that one position has two roles",
        ),
        (Composite(), {"mode": "bos"}, "mode='bos' isn't known here; use one of mask, zero"),
        (Composite(), {"n_controls": 0}, "n_controls=0 leaves an effect without anything to compare; give at least 1"),
    ],
)
def test_what_has_no_circuits_is_refused(with_mlp, task, options, text):
    with as_without_type_checks(), pytest.raises(InputError, match=text):
        measure_mechanism(with_mlp, task, n=10, **{"n_controls": 2, **options})


def test_a_model_of_one_layer_is_refused_before_anything_is_run():
    model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True, device="cpu")
    for function in (measure_mechanism, classify_solution):
        with pytest.raises(
            InputError, match="A circuit of two stages needs at least two layers, but this model has one"
        ):
            function(model, dropped_pairs(), n=10)
