import numpy as np
import pytest
import torch

import interp
from interp.heads.definitions import Geometry, score_pattern, score_values
from tests.hand_built import build_copying_machine


@pytest.fixture(scope="module")
def machine():
    return build_copying_machine()


@pytest.mark.parametrize("bos", ["none", 0])
@pytest.mark.parametrize("copies", [2, 3])
def test_hand_built_heads_score_one(machine, bos, copies):
    scores = interp.score_heads(machine, n_sequences=8, segment=12, copies=copies, bos=bos)
    n_positions = (bos != "none") + 12 * copies
    sink = 1 - 1e-6 * (n_positions - 1)  # the maximum of the published sink-removed form
    for definition, best in (("raw", 1.0), ("sink_removed", sink)):
        assert scores.mean("previous_token", definition)[0, 0] == pytest.approx(best, abs=2e-6)
    # In a third copy a head that looks for every earlier occurrence shares its attention between two places.
    shared = 1.0 if copies == 2 else 0.75
    for kind, (layer, head) in (("induction", (1, 0)), ("duplicate_token", (1, 1))):
        assert scores.mean(kind, "raw")[layer, head] == pytest.approx(shared, abs=1e-5)
        removed = shared * sink
        if (
            copies == 3 and bos == "none" and kind == "duplicate_token"
        ):  # one of its two places is the sink at position 0
            removed = (11 * 1 + 11 * 0.5 + 1) / 23
        assert scores.mean(kind, "sink_removed")[layer, head] == pytest.approx(removed, abs=5e-5)
        assert scores.mean(kind, "prefix_matching")[layer, head] == pytest.approx(1.0, abs=1e-5)
    assert scores.copying[1, 0] == pytest.approx(1.0, abs=1e-6)
    assert scores.top("induction", 1) == [(1, 0)]
    assert scores.top("previous_token", 1) == [(0, 0)]


def test_uniform_head_scores_the_mean_of_one_over_legal_keys(machine):
    scores = interp.score_heads(machine, n_sequences=2, segment=12, bos="none")
    assert scores.induction[0, 1] == pytest.approx(np.mean([1 / (i + 1) for i in range(12, 24)]), abs=1e-6)
    assert scores.previous_token[0, 1] == pytest.approx(np.mean([1 / (i + 1) for i in range(2, 24)]), abs=1e-6)


def test_control_sequences_leave_nothing_to_induct(machine):
    control = interp.score_heads(machine, n_sequences=8, segment=12, sequences="unrepeated", bos="none")
    assert control.induction[1, 0] < 0.1
    assert control.previous_token[0, 0] == pytest.approx(1.0)


@pytest.mark.parametrize(("offset", "copies"), [(0, 2), (1, 2), (0, 4), (1, 3)])
def test_scores_equal_loops_over_positions(offset, copies):
    segment = 5
    geometry = Geometry(offset=offset, segment=segment, copies=copies)
    n = geometry.n_positions
    pattern = torch.rand(2, 3, n, n, generator=torch.Generator().manual_seed(0)).tril()
    pattern = pattern / pattern.sum(-1, keepdim=True)
    scores = score_pattern(pattern, geometry)

    def removed(row, key):
        return row[key] / sum(row[j] + 1e-6 for j in range(1, n))

    for b in range(2):
        for h in range(3):
            rows = pattern[b, h].tolist()
            later = range(offset + segment, n)
            expected = {
                "induction/raw": [rows[i][i - segment + 1] for i in later],
                "induction/sink_removed": [removed(rows[i], i - segment + 1) for i in later],
                "induction/prefix_matching": [
                    sum(rows[i][i - c * segment + 1] for c in range(1, (i - offset) // segment + 1)) for i in later
                ],
                "previous_token/raw": [rows[i][i - 1] for i in range(2, n)],
                "previous_token/sink_removed": [removed(rows[i], i - 1) for i in range(2, n)],
                "duplicate_token/raw": [rows[i][i - segment] for i in later],
                "duplicate_token/sink_removed": [removed(rows[i], i - segment) for i in later if i - segment >= 1],
                "duplicate_token/prefix_matching": [
                    sum(rows[i][i - c * segment] for c in range(1, (i - offset) // segment + 1)) for i in later
                ],
            }
            assert set(expected) == set(scores)
            for name, values in expected.items():
                assert scores[name][b, h].item() == pytest.approx(np.mean(values), abs=1e-5), name


def test_value_share_tells_copying_from_chance_and_from_suppression():
    n_tokens, d_model = 6, 8
    generator = torch.Generator().manual_seed(0)
    directions = torch.linalg.qr(torch.randn(d_model, d_model, generator=generator)).Q[:, :n_tokens][None]
    values = directions.transpose(1, 2)[:, :, None]  # each token's value is its own unembedding direction
    identity = torch.eye(d_model)[None]
    assert score_values(values, identity, directions).item() == pytest.approx(1.0, abs=1e-5)
    assert score_values(values, -identity, directions).item() == pytest.approx(-1 / (n_tokens - 1), abs=1e-5)
    assert score_values(values, 0 * identity, directions).item() == pytest.approx(0.0)


def test_batches_do_not_change_the_scores(machine):
    whole = interp.score_heads(machine, n_sequences=7, segment=6, seed=3)
    pieces = interp.score_heads(machine, n_sequences=7, segment=6, seed=3, batch_size=2)
    for name, values in whole.per_sequence.items():
        np.testing.assert_allclose(pieces.per_sequence[name], values, atol=1e-6)


def test_out_of_memory_halves_the_batch_and_says_so(machine, monkeypatch):
    from interp.heads import scores as module

    run_until = module.run_until

    def small_machine(model, tokens, name):
        if len(tokens) > 3:
            raise torch.OutOfMemoryError("no room")
        return run_until(model, tokens, name)

    monkeypatch.setattr(module, "run_until", small_machine)
    scores = interp.score_heads(machine, n_sequences=8, segment=6, batch_size=8)
    assert scores.notes == (
        "out of memory with 8 sequences at once, went on with 4",
        "out of memory with 4 sequences at once, went on with 2",
    )
    assert scores.induction[1, 0] == pytest.approx(1.0, abs=1e-5)


def test_no_logits_are_computed_and_no_hook_remains(machine, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the unembedding ran")

    monkeypatch.setattr(machine.unembed, "forward", refuse)
    interp.score_heads(machine, n_sequences=2, segment=6)
    assert all(not point._forward_hooks for point in machine.hook_dict.values())


def test_frame_and_repr(machine):
    scores = interp.score_heads(machine, n_sequences=4, segment=6)
    frame = scores.to_frame()
    assert len(frame) == 9 * 4
    row = frame[(frame.kind == "induction") & (frame.definition == "raw") & (frame.layer == 1) & (frame["head"] == 0)]
    assert row[["value", "low", "high", "n"]].iloc[0].tolist() == pytest.approx([1, 1, 1, 4])
    assert "strongest induction head 1.0 1.00" in repr(scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segment": 40}, "make a sequence of 80, but this model reads at most n_ctx=64"),
        ({"segment": 31}, "A segment of 31 distinct tokens needs as many ids, but the vocabulary has 30"),
        ({"copies": 1}, "2 copies"),
        ({"vocabulary": torch.arange(25, 60)}, "ids from 25 to 59, but this model's go from 0 to 29"),
        ({"bos": 99}, "this model's ids go from 0 to 29"),
        ({"bos": "bos"}, "no tokenizer with a BOS token"),
    ],
)
def test_bad_options_get_one_sentence(machine, options, message):
    with pytest.raises(interp.InputError, match=message):
        interp.score_heads(machine, **options)


def test_unknown_kind_and_definition(machine):
    scores = interp.score_heads(machine, n_sequences=2, segment=6)
    with pytest.raises(interp.InputError, match="previous_token has no definition 'prefix_matching'"):
        scores.per_sequence and scores.mean("previous_token", "prefix_matching")
    with pytest.raises(interp.InputError, match="top 5 heads were asked for, but this model has 1 to 4"):
        scores.top("induction", 5)
