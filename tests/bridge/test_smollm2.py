import pytest

from interp.bridge.find import find_bridge
from interp.bridge.sweep import sweep_bridge

INDUCTION = [(18, 6), (17, 4), (17, 3), (17, 5), (18, 7), (23, 2), (23, 7), (20, 6), (24, 4), (22, 7)]


@pytest.mark.slow
def test_ten_dimensions_found_in_other_layers_carry_copying_and_hardly_any_text(smollm2):
    """The finding on the page, on a few sequences."""
    before = {name: value.clone() for name, value in smollm2.named_parameters()}
    sweep = sweep_bridge(
        smollm2,
        induction_heads=INDUCTION,
        parts=["remove"],
        ranks=[10],
        control_ranks=[10],
        n_sequences=6,
        n_control_sequences=4,
        n_draws=3,
    )
    random, others = sweep.compare("random", 10), sweep.compare("other_heads", 10)
    assert random.bridge > 0.9
    assert random.controls.max() < 0.7
    assert others.controls.max() < 0.85
    assert sweep.text_rise(10)[2] < 0.1
    assert len(sweep.collateral_heads) == 11
    assert all(value.equal(before[name]) for name, value in smollm2.named_parameters())
    assert find_bridge(smollm2, INDUCTION, rank="cap").cap == 448
