"""The bridge's question: what is stored comes back, and the section says what the numbers say."""

from dataclasses import fields, replace

import numpy as np
import pytest

import interp
from analyses.analysis import Options, Subject
from analyses.common_bridge import BRIDGE, choose_heads
from analyses.common_bridge_cells import restore_pairs, restore_shuffle, restore_sweep
from analyses.heads import HEADS
from interp.bridge.result import NAMES
from interp.models.provenance import get_provenance
from interp.records.schema import to_frame
from interp.records.store import Cell
from tests.hand_built import build_copying_machine


def _run(subject: Subject) -> dict[str, Cell]:
    """The cells of the heads' and the bridge's parts, on few sequences."""
    cells: dict[str, Cell] = {}
    for analysis in (HEADS, BRIDGE):
        for part in analysis.parts:
            outcome = part.measure(subject, Options(quick=True), cells)
            cells[f"{analysis.name}/{part.name}"] = Cell(
                frame=to_frame(outcome.measurements), arrays=outcome.arrays, about=outcome.about
            )
    return cells


@pytest.fixture(scope="module")
def random_subject():
    model = interp.build(n_layers=4, d_model=24, n_heads=4, d_vocab=60, n_ctx=64, attn_only=True, seed=1)
    return Subject(model=model, provenance=get_provenance(model))


@pytest.fixture(scope="module")
def random_cells(random_subject):
    return _run(random_subject)


@pytest.fixture(scope="module")
def machine_section():
    model = build_copying_machine(d_vocab=60, n_ctx=60)
    subject = Subject(model=model, provenance=get_provenance(model))
    return BRIDGE.write_section(subject.provenance, _run(subject))


def _same(one, other) -> None:
    for field in fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs)
        elif field.name not in ("runs", "bridge", "plan"):
            assert ours == theirs, field.name


@pytest.mark.slow
def test_what_is_stored_comes_back(random_subject, random_cells):
    from interp.bridge.shuffle import shuffle_heads
    from interp.bridge.sweep import sweep_bridge
    from interp.circuits.pairs import score_pairs

    provenance = random_subject.provenance
    induction, previous = choose_heads_of(random_cells, provenance)
    _same(restore_pairs(provenance, random_cells["bridge/pairs"]), score_pairs(random_subject.model, keep=1000))
    again = sweep_bridge(
        random_subject.model, induction_heads=induction, previous_token_heads=previous, n_draws=20, n_sequences=12
    )
    restored = restore_sweep(provenance, random_cells["bridge/keys"])
    _same(restored, again)
    assert repr(restored) == repr(again)
    for one, other in zip(restored.runs, again.runs, strict=True):
        _same(one, other)
    shuffled = shuffle_heads(random_subject.model, induction, side="QK", n_repetitions=20, n_sequences=8)
    _same(restore_shuffle(provenance, random_cells["bridge/shuffle"]), shuffled)


def choose_heads_of(cells, provenance):
    from analyses.heads import restore_scores

    return choose_heads(restore_scores(provenance, cells["heads/repeated"]))


@pytest.mark.slow
def test_a_model_without_copying_has_no_bridge_that_carries_it(random_subject, random_cells):
    section = BRIDGE.write_section(random_subject.provenance, random_cells)
    assert section.verdict.startswith("Copying is not shown to go through a common bridge: without the")
    assert "The bridges of" in section.verdict
    assert f"{NAMES['random']} 0." in section.control
    assert set(section.table["side"]) == {"QK", "OV"}


@pytest.mark.slow
def test_the_machine_loses_copying_with_the_directions_its_key_reads(machine_section):
    """Its one induction head reads the previous token; one layer has nothing to be cross-fitted on."""
    assert "that the same induction heads read" in machine_section.verdict
    assert "By Z 1.0 reads what 0.0 writes most of all" in machine_section.figures[0].verdict
    assert "Induction heads: 1.0. Previous-token heads: 0.0." in machine_section.notes[0]


def test_heads_of_the_first_layer_read_nothing_and_heads_above_all_readers_feed_none():
    scores = interp.score_heads(build_copying_machine(), n_sequences=4, segment=10)
    strongest = {
        name: np.where(np.arange(2)[None, :, None] == layer, 1.0, values)
        for name, values in scores.per_sequence.items()
        for layer in [0 if name.startswith("induction") else 1]
    }
    induction, previous = choose_heads(replace(scores, per_sequence=strongest))
    assert [layer for layer, _ in induction] == [1]
    assert [layer for layer, _ in previous] == [0]


def test_a_model_of_one_layer_is_refused():
    model = interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=60, n_ctx=64, attn_only=True)
    subject = Subject(model=model, provenance=get_provenance(model))
    assert BRIDGE.applies(subject) == "the model has one layer, so no head can feed another"
