"""The flow through a machine whose every edge is known, and equality with one `knock_out_attention` at a time."""

import numpy as np
import pytest
import torch

import interp
from interp.errors import InputError
from interp.interventions import flow_sweep
from interp.interventions.edge_controls import draw_edges
from interp.interventions.information_flow import information_flow
from interp.interventions.role_edges import assign_roles, find_live_edges, keep_own_edge
from interp.statistics import bootstrap_interval
from tasks.task import Batch
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks

TOKENS = torch.randint(97, (3, 14), generator=torch.Generator().manual_seed(1))


def make_batch(tokens, targets, scored, **roles):
    return Batch(tokens=tokens, targets=targets, trained=scored, scored=scored, roles=roles)


def make_copying_batch(n=16, length=10, seed=0):
    """Distinct tokens; the last one is that at `first`, so what comes next is the token at `answer`."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.stack([torch.randperm(30, generator=generator)[:length] for _ in range(n)])
    first = torch.randint(1, length - 3, (n, 1), generator=generator)
    tokens[:, -1] = tokens.gather(1, first)[:, 0]
    targets = torch.zeros_like(tokens)
    targets[:, -1] = tokens.gather(1, first + 1)[:, 0]
    scored = (torch.arange(length) == length - 1).expand(n, -1)
    return make_batch(tokens, targets, scored, first=first, answer=first + 1, last=torch.full((n, 1), length - 1))


def make_moving_batch():
    """Roles that move, one of them as a mask of varying size, and one to three scored positions."""
    key, pair = torch.tensor([[2], [4], [3]]), torch.tensor([[4, 6], [7, 8], [5, 10]])
    scored = torch.zeros(3, 14, dtype=torch.bool)
    scored[0, 12] = scored[1, [9, 11, 12]] = scored[2, 11] = True
    early = torch.zeros(3, 14, dtype=torch.bool)
    early[0, 1] = early[1, [1, 2, 3]] = early[2, [1, 2]] = True
    return make_batch(TOKENS, TOKENS.roll(-1, 1), scored, key=key, pair=pair, early=early)


def measure(logits, uncut, batch):
    """(accuracy, KL, log-probability) of each example, in numpy."""
    result = []
    for row in range(len(batch.tokens)):
        at = batch.scored[row].numpy()
        cut, whole = (one[row].double().log_softmax(-1).numpy()[at] for one in (logits, uncut))
        target = batch.targets[row].numpy()[at]
        kl = (np.exp(whole) * (whole - cut)).sum(-1)
        result.append([(cut.argmax(-1) == target).mean(), kl.mean(), cut[np.arange(len(cut)), target].mean()])
    return np.array(result).T


@pytest.fixture(scope="module")
def machine():
    return build_copying_machine()


@pytest.fixture(scope="module")
def copying(machine):
    """The flow of the machine, by mode."""
    return {mode: information_flow(machine, make_copying_batch(), mode=mode) for mode in ("mask", "zero", "bos")}


@pytest.mark.parametrize("mode", ["mask", "zero", "bos"])
def test_the_machine_copies_over_two_edges_and_no_other(copying, mode):
    flow = copying[mode]
    assert flow.roles == ("rest", "first", "answer", "last")
    assert set(flow.top(2)) == {(0, "answer", "first"), (1, "last", "answer")}
    assert flow.uncut_accuracy.mean() == 1
    carrying = np.zeros_like(flow.beyond_control)
    carrying[0, 2, 1] = carrying[1, 3, 2] = True
    assert (flow.beyond_control == carrying).all()
    np.testing.assert_array_equal(flow.accuracy_drop[carrying], 1)
    np.testing.assert_allclose(flow.p_values[carrying], 1 / 21)
    others = flow.mean_kl[~carrying & np.isfinite(flow.mean_kl)]
    if mode == "mask":  # cut off from the token before it, `first` takes itself for its predecessor
        others = np.delete(others, others.argmax())
        assert flow.top(3)[2] == (0, "first", "rest")
    assert others.max() < 1e-9


def test_attention_without_effect(copying):
    """Layer 1 head 1 looks from `last` at `first` with all its attention and writes nothing."""
    flow = copying["zero"]
    assert flow.attention_mass[:, 1, 1, 3, 1].min() > 0.999
    assert flow.removed_mass[:, 1, 3, 1].min() > 0.999
    assert flow.mean_kl[1, 3, 1] == 0
    assert flow.accuracy_drop[1, 3, 1] == 0
    assert flow.p_values[1, 3, 1] == 1
    assert not flow.beyond_control[1, 3, 1]


def test_heads_without_the_one_that_matters(machine):
    flow = information_flow(machine, make_copying_batch(), heads=[(0, 0), (1, 1)], n_controls=2)
    assert flow.layers == (0, 1)
    assert flow.heads == ((0,), (1,))
    assert flow.accuracy_drop[0, 2, 1] == 1
    assert np.nanmax(flow.mean_kl[1]) == 0
    assert flow.attention_mass.shape == (16, 2, 2, 4, 4)  # of every head, cut or not


@pytest.mark.parametrize("mode", ["mask", "zero", "bos"])
@pytest.mark.parametrize("heads", [None, [1, 4]])
def test_equals_one_cut_at_a_time(both, mode, heads):
    batch, names = make_moving_batch(), ("early", "key", "pair")
    for model, engine in zip(both, ("suffix", "whole"), strict=True):
        flow = information_flow(model, batch, mode=mode, heads=heads, n_controls=1)
        assert flow.engine == engine
        assert flow.roles == ("rest", *names)
        with torch.no_grad():
            uncut = model(TOKENS)
        np.testing.assert_allclose(
            [flow.uncut_accuracy, flow.uncut_log_prob], measure(uncut, uncut, batch)[[0, 2]], atol=1e-5
        )
        n_compared = 0
        for layer in (0, 1):
            for q, query in enumerate(flow.roles):
                for k, key in enumerate(flow.roles):
                    if (
                        "rest" in (query, key)
                        or (mode == "mask" and query == key)
                        or names.index(query) < names.index(key)
                    ):
                        continue
                    chosen = {"queries": [query], "keys": [key], "layers": [layer], "heads": heads, "batch": batch}
                    with interp.knock_out_attention(model, mode=mode, **chosen), torch.no_grad():
                        cut = measure(model(TOKENS), uncut, batch)
                    found = np.stack([flow.accuracy, flow.kl, flow.log_prob])[:, :, layer, q, k]
                    np.testing.assert_allclose(found, cut, atol=1e-5)
                    n_compared += found[1].max() > 1e-4
        assert n_compared >= 3


def test_both_engines_give_the_same_controls(both):
    flows = [information_flow(model, make_moving_batch(), n_controls=3) for model in both]
    for name in ("kl", "log_prob", "removed_mass", "attention_mass", "control_kl", "control_mass"):
        np.testing.assert_allclose(*(getattr(flow, name) for flow in flows), atol=2e-5, err_msg=name)


@pytest.mark.parametrize("mode", ["mask", "zero"])
def test_controls_equal_whole_runs_with_those_edges_cut(both, mode, monkeypatch):
    model, batch, drawn = both[0], make_moving_batch(), []

    def draw(*arguments, **options):
        drawn.append(draw_edges(*arguments, **options))
        return drawn[-1]

    monkeypatch.setattr(flow_sweep, "draw_edges", draw)
    flow = information_flow(model, batch, mode=mode, n_controls=2, layers=[0])
    with torch.no_grad():
        uncut = model(TOKENS)
    scored_until, pairs = drawn[0].shape[-1], np.argwhere(np.isfinite(flow.mean_kl[0]))
    assert scored_until == 13
    for index, (query, key) in enumerate(pairs):
        edges = torch.zeros(3, 1, 14, 14, dtype=torch.bool)
        edges[:, 0, :13, :13] = drawn[0][:, index, 1]

        def cut(pattern, hook, edges=edges):
            rest = pattern.masked_fill(edges, 0)
            return rest / rest.sum(-1, keepdim=True) if mode == "mask" else rest

        with interp.add_hooks(model, [("blocks.0.attn.hook_pattern", cut)]), torch.no_grad():
            accuracy, kl, _ = measure(model(TOKENS), uncut, batch)
        known = np.isfinite(flow.kl[:, 0, query, key])
        np.testing.assert_allclose(flow.control_kl[1, 0, query, key], kl[known].mean(), atol=1e-5)
        np.testing.assert_allclose(flow.control_accuracy[1, 0, query, key], accuracy[known].mean())


def test_a_query_that_loses_every_key_keeps_itself(both):
    """`early` begins at position 1 and its queries see `rest` at 0; without roles at 0 nothing is left but itself."""
    model = both[0]
    start = torch.tensor([[0, 1, 2]]).expand(3, -1)
    scored = (torch.arange(14) == 13).expand(3, -1)
    batch = make_batch(TOKENS, TOKENS, scored, start=start)
    flow = information_flow(model, batch, n_controls=2, layers=[0])

    def keep_self(pattern, hook):
        edited = pattern.clone()
        edited[:, :, :3] = torch.eye(14)[:3]
        return edited

    with torch.no_grad():
        uncut = model(TOKENS)
        with interp.add_hooks(model, [("blocks.0.attn.hook_pattern", keep_self)]):
            cut = model(TOKENS)
    at = flow.roles.index("start")
    np.testing.assert_allclose(flow.kl[:, 0, at, at], measure(cut, uncut, batch)[1], atol=1e-5)


@pytest.mark.parametrize("family", ["mistral_window", "gemma2"])  # a HookedTransformer and a bridge
def test_a_query_whose_window_is_cut_keeps_itself(family):
    """The window is 8 keys long, so from position 11 on a query sees no position before 4."""
    model = interp.load(make_tiny(family), device="cpu")
    scored = (torch.arange(14) == 13).expand(3, -1)
    flow = information_flow(
        model, make_batch(TOKENS, TOKENS, scored, late=torch.arange(4, 14).expand(3, -1)), n_controls=1
    )

    def cut(pattern, hook):
        edited = pattern.clone()
        edited[:, :, 4:, 4:] = 0
        edited[:, :, 11:, 4:] = torch.eye(14)[11:, 4:]
        return edited / edited.sum(-1, keepdim=True)

    with torch.no_grad():
        uncut = model(TOKENS)
        with interp.add_hooks(model, [("blocks.0.attn.hook_pattern", cut)]):
            logits = model(TOKENS)
    batch = make_batch(TOKENS, TOKENS, scored)
    np.testing.assert_allclose(flow.kl[:, 0, 1, 1], measure(logits, uncut, batch)[1], atol=1e-5)


def test_attention_mass_is_summed_over_keys_and_averaged_over_queries(both):
    model, batch = both[0], make_moving_batch()
    flow = information_flow(model, batch, n_controls=1)
    _, cache = model.run_with_cache(TOKENS)
    pattern = cache["pattern", 1][1]  # of the second example: pair 7, 8; early 1, 2, 3
    q, k = flow.roles.index("pair"), flow.roles.index("early")
    expected = pattern[:, [7, 8]][:, :, [1, 2, 3]].sum(-1).mean(-1)
    np.testing.assert_allclose(flow.attention_mass[1, 1, :, q, k], expected, atol=1e-6)
    assert np.isnan(flow.attention_mass[1, :, :, k, q]).all()  # early comes before pair in every example
    # In the last layer only the scored position can matter, which is no `pair`.
    assert flow.removed_mass[1, 1, q, k] == 0
    assert flow.kl[1, 1, q, k] == 0
    rest = flow.roles.index("rest")
    scored_mass = pattern[:, [9, 11, 12]][:, :, [7, 8]].sum()
    np.testing.assert_allclose(flow.removed_mass[1, 1, rest, q], scored_mass, atol=1e-5)


def test_controls_carry_the_mass_of_the_edge(both):
    flow = information_flow(both[0], make_moving_batch(), n_controls=100, layers=[0])
    q, k = flow.roles.index("pair"), flow.roles.index("key")
    wanted, got = np.nanmean(flow.removed_mass[:, 0, q, k]), flow.control_mass[:, 0, q, k]
    assert abs(got.mean() - wanted) < 4 * got.std() / np.sqrt(len(got)) + 1e-6
    assert got.std() < 0.5 * wanted


def test_random_sets_have_the_expected_mass_and_stay_in_the_pool():
    generator = torch.Generator().manual_seed(0)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    mass = torch.rand(2, 6, 6, generator=generator) * causal
    pool = (torch.rand(2, 3, 6, 6, generator=generator) < 0.7) & causal
    target = torch.tensor([[0.3, 1.2, 0.0], [0.05, 2.0, 100.0]])
    sets = draw_edges(mass, pool, target, torch.rand(2, 3, 4000, 37, generator=generator))
    assert not (sets & ~pool[:, :, None]).any()
    got = (mass[:, None, None] * sets).sum((-1, -2))
    assert (got[0, 2] == 0).all()
    assert (sets[1, 2] == pool[1, 2]).all()  # not enough there, so all of it
    for place in ((0, 0), (0, 1), (1, 0), (1, 1)):
        error = got[place].std() / len(got[place]) ** 0.5
        assert abs(got[place].mean() - target[place]) < 4 * error
        assert (got[place] - target[place]).abs().max() < mass.max()
    assert len(sets[0, 1].flatten(1).unique(dim=0)) > 100


def test_random_sets_leave_every_query_a_key():
    generator = torch.Generator().manual_seed(0)
    causal = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    mass = torch.rand(1, 5, 5, generator=generator) * causal
    pool = causal[:, None].repeat(1, 2, 1, 1)
    pool[0, 1, 3, 0] = False
    random = torch.rand(1, 2, 200, 26, generator=generator)
    sets = draw_edges(mass, pool, torch.full((1, 2), 100.0), random, reach=causal)
    kept = (causal[:, None, None] & ~sets).sum(-1)
    assert (kept == 1).all()  # everything but one key of each query
    assert (sets[0, 1, :, 3, 1:4]).all()  # its key 0 isn't in the pool, so the others can go
    assert {tuple(row) for row in (causal & ~sets[0, 0])[:, 4].int().tolist()} == set(
        map(tuple, torch.eye(5).int().tolist())
    )


def test_cuts_and_edges_that_can_matter():
    scored = torch.tensor([[False, True, False]])
    assert find_live_edges(scored, last_layer=False)[0].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert find_live_edges(scored, last_layer=True)[0].int().tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0]]
    reach = torch.ones(3, 3, dtype=torch.bool).tril()
    cut = torch.tensor([[True, False, False], [True, True, False], [True, False, True]])
    kept = keep_own_edge(cut, reach)
    assert kept.int().tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 1]]


def test_roles_left_to_right_or_as_given():
    batch = make_moving_batch()
    assert assign_roles(batch, None)[0] == ("rest", "early", "key", "pair")
    names, where = assign_roles(batch, ["pair", "early"])
    assert names == ("rest", "pair", "early")
    assert where.shape == (3, 3, 13)  # nothing is scored at 13
    assert where[:, 0].sum().item() == where[:, 0].numel() - where[:, 1:].sum().item()
    assert (where.sum(dim=1) == 1).all()


def test_the_same_numbers_whatever_runs_at_once(both):
    model, batch = both[0], make_moving_batch()
    flow = information_flow(model, batch, n_controls=1)
    small = information_flow(model, batch, n_controls=1, batch_size=2)
    for name in ("kl", "removed_mass", "control_kl", "control_mass", "control_accuracy"):
        np.testing.assert_allclose(getattr(small, name), getattr(flow, name), atol=1e-5, err_msg=name)
    other = information_flow(model, batch, n_controls=1, seed=1)
    np.testing.assert_allclose(other.kl, flow.kl, atol=1e-5)
    assert not np.allclose(other.control_mass, flow.control_mass, equal_nan=True)


def test_hooks_of_the_caller_act_and_stay(both):
    model, batch = both[0], make_moving_batch()
    plain = information_flow(model, batch, n_controls=1)
    with interp.ablate_heads(model, [(0, 2)]):
        flow = information_flow(model, batch, n_controls=1)
        with torch.no_grad():
            logits = model(TOKENS)
        np.testing.assert_allclose(flow.uncut_log_prob, measure(logits, logits, batch)[2], atol=1e-5)
    assert (plain.engine, flow.engine) == ("suffix", "whole")
    assert np.abs(flow.uncut_log_prob - plain.uncut_log_prob).max() > 1e-3
    assert not any(point.fwd_hooks for point in model.hook_dict.values())


def test_an_edge_that_only_some_examples_have(both):
    where = torch.tensor([[3], [9], [3]])
    batch = make_moving_batch()
    batch = make_batch(TOKENS, batch.targets, batch.scored, here=where, there=torch.tensor([[6], [6], [7]]))
    flow = information_flow(both[0], batch, n_controls=4)
    q, k = flow.roles.index("there"), flow.roles.index("here")
    assert np.isnan(flow.kl[1, :, q, k]).all()
    assert flow.n_examples[q, k] == 2
    assert flow.mean_kl[0, q, k] == pytest.approx(flow.kl[[0, 2], 0, q, k].mean())
    low, high = bootstrap_interval(flow.kl[[0, 2], 0, q, k][:, None], seed=0)
    assert (flow.kl_interval[0][0, q, k], flow.kl_interval[1][0, q, k]) == pytest.approx((low[0], high[0]))
    frame = flow.to_frame().set_index(["layer", "query", "key"])
    assert frame.loc[(0, "there", "here"), "n"] == 2
    assert frame.loc[(0, "here", "there"), "n"] == 1
    assert np.isfinite(flow.control_kl[:, 0, q, k]).all()


def test_a_result_reads_well(copying):
    flow = copying["mask"]
    text = repr(flow)
    assert "strongest edge layer 1 last <- answer: KL 51.00" in text
    assert "accuracy -1.00; 20 random sets: KL 0.00" in text
    assert "p = 0.048; n=16 examples" in text
    frame = flow.to_frame()
    assert len(frame) == np.isfinite(flow.mean_kl).sum()
    best = frame.iloc[0]
    assert (best["layer"], best["query"], best["key"]) == flow.top(1)[0]
    assert best["control_kl_max"] == flow.control_kl[:, 1, 3, 2].max()
    draws = flow.control_kl[:, 0, 1, 0]
    expected = (1 + (draws >= flow.mean_kl[0, 1, 0]).sum()) / 21
    assert flow.p_values[0, 1, 0] == pytest.approx(expected)
    assert flow._repr_html_().count("<svg") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"roles": ["first", "nowhere"]}, "no role 'nowhere'; its roles: answer, first, last"),
        ({"roles": []}, "There is no role to look at"),
        ({"layers": [2]}, "Layer 2 doesn't exist"),
        ({"heads": [2]}, "Head 0.2 doesn't exist"),
        ({"mode": "all"}, "mode='all' isn't known; use one of mask, zero, bos"),
        ({"n_controls": 0}, "n_controls=0 leaves an effect without anything to compare"),
        ({"batch_size": 0}, "batch_size=0 runs nothing"),
    ],
)
def test_refusals(machine, change, message):
    with as_without_type_checks(), pytest.raises(InputError, match=message):
        information_flow(machine, make_copying_batch(n=2), **change)


def test_refused_batches(machine):
    tokens = torch.arange(5)[None]
    scored = torch.tensor([[False, False, False, True, False]])
    pair, last = torch.tensor([[1, 2]]), torch.tensor([[3]])

    def follow(tokens=tokens, scored=scored, **roles):
        return information_flow(machine, make_batch(tokens, tokens, scored, **roles), n_controls=1)

    with pytest.raises(InputError, match=r"'both' and 'pair' share position 2 of sequence 0.*leave one of them out"):
        follow(pair=pair, both=torch.tensor([[2, 3]]))
    with pytest.raises(InputError, match=r"'late' has no position at or before the last scored one"):
        follow(pair=pair, late=torch.tensor([[4]]))
    with pytest.raises(InputError, match=r"would be called 'rest', but the batch has a role of that name"):
        follow(rest=pair, last=last)
    with pytest.raises(InputError, match=r"Sequence 0 has no scored position"):
        follow(scored=torch.zeros_like(scored), last=last)
    with pytest.raises(InputError, match=r"tokens go from 0 to 30, but this model's ids from 0 to 29"):
        follow(tokens=torch.tensor([[0, 1, 2, 30, 4]]), last=last)
    with pytest.raises(InputError, match=r"sequences have 65 tokens, but this model reads 64"):
        follow(tokens=torch.zeros(1, 65).long(), scored=torch.ones(1, 65).bool(), last=last)
