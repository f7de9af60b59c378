"""Rotary positions: turning by hand, tables read back, and what families do."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import interp
from interp.circuits.factors import LayerFactors, read_factors, rotate_keys
from interp.circuits.rotary import Rotary, read_tables
from interp.errors import InputError
from tests.conftest import make_tiny


def dense_rotation(angles: list[float], d_head: int, pairing: str) -> Tensor:
    """R as a matrix that acts on columns, pair by pair."""
    rotation = torch.eye(d_head, dtype=torch.float64)
    for pair, angle in enumerate(angles):
        first, second = (2 * pair, 2 * pair + 1) if pairing == "adjacent" else (pair, pair + len(angles))
        rotation[first, first] = rotation[second, second] = math.cos(angle)
        rotation[first, second], rotation[second, first] = -math.sin(angle), math.sin(angle)
    return rotation


def make_factors(rotary: Rotary | None) -> LayerFactors:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return LayerFactors(
        layer=3,
        W_Q=draw(4, 10, 8),
        W_K=draw(2, 10, 8),
        W_V=draw(2, 10, 8),
        W_O=draw(4, 8, 10),
        b_Q=draw(4, 8),
        b_K=draw(2, 8),
        b_V=draw(2, 8),
        b_O=draw(10),
        scale=8**0.5,
        rotary=rotary,
    )


def make_rotary(pairing: Any = "halves", *, pairs: int = 3, amplitude: float = 1.0) -> Rotary:
    frequencies = 10.0 ** -torch.arange(pairs, dtype=torch.float64)
    return Rotary(frequencies=frequencies, pairing=pairing, amplitude=amplitude)


def test_a_quarter_turn_by_hand() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    quarter = torch.tensor([math.pi / 2] * 2, dtype=torch.float64)
    halves = Rotary(frequencies=quarter, pairing="halves").turn(x, torch.tensor(1))
    adjacent = Rotary(frequencies=quarter, pairing="adjacent").turn(x, torch.tensor(1))
    torch.testing.assert_close(halves, torch.tensor([-3.0, -4.0, 1.0, 2.0, 5.0]))
    torch.testing.assert_close(adjacent, torch.tensor([-2.0, 1.0, -4.0, 3.0, 5.0]))


@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
@pytest.mark.parametrize("distance", [0, 1, 7, 300])
def test_keys_at_a_distance_are_the_dense_rotation_of_the_keys(pairing: str, distance: int) -> None:
    factors = make_factors(make_rotary(pairing))
    angles = [distance * 10.0**-pair for pair in range(3)]
    expected = factors.W_K @ dense_rotation(angles, 8, pairing)  # rows: (R^T k)^T = k^T R
    torch.testing.assert_close(rotate_keys(factors, distance), expected)


@pytest.mark.parametrize("pairing", ["halves", "adjacent"])
def test_a_logit_depends_on_the_distance_alone(pairing: str) -> None:
    factors = make_factors(make_rotary(pairing, amplitude=1.3))
    assert factors.rotary is not None
    x, y = torch.randn(2, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    query = factors.rotary.turn(x @ factors.W_Q[2], torch.tensor(25))
    key = factors.rotary.turn(y @ factors.W_K[1], torch.tensor(14))
    at_distance = x @ factors.W_Q[2] @ (rotate_keys(factors, 11)[2 // factors.group].T @ y)
    torch.testing.assert_close(query @ key, at_distance)


def test_the_mean_is_the_average_over_distances() -> None:
    factors = make_factors(make_rotary())
    slow = torch.stack([rotate_keys(factors, distance) for distance in range(1, 31)]).mean(0)
    torch.testing.assert_close(rotate_keys(factors, "mean", max_distance=30), slow)
    assert rotate_keys(factors, "none") is factors.W_K


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_tables_are_read_back(dtype: torch.dtype, layout: str) -> None:
    frequencies = 10000.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    wide = torch.cat([frequencies, frequencies]) if layout == "halves" else frequencies.repeat_interleave(2)
    angles = torch.arange(512)[:, None] * wide
    rotary = read_tables((1.5 * angles.cos()).to(dtype), (1.5 * angles.sin()).to(dtype), pairing="halves")
    # The position doubles up to 256, so rounding of an angle is divided by it.
    tolerance = 1e-6 if dtype == torch.float32 else 0.01 / 256
    torch.testing.assert_close(rotary.frequencies, frequencies, atol=tolerance, rtol=1e-3)
    assert rotary.amplitude == 1.5
    assert rotary.width == 16


def test_tables_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="two positions and an even width, but these are 1 by 4"):
        read_tables(torch.ones(1, 4), torch.zeros(1, 4), pairing="halves")
    angles = torch.arange(4.0)[:, None] * torch.tensor([1.0, 0.5, 0.2, 0.1])
    with pytest.raises(InputError, match="no pairs of channels with the same angle"):
        read_tables(angles.cos(), angles.sin(), pairing="halves")


def llama3_frequencies() -> list[float]:
    """Scaled as in Llama 3.1: low frequencies divided by 4, high ones kept, a ramp between; context 16."""
    scaled = []
    for i in range(4):
        frequency = 10000.0 ** (-i / 4)
        wavelength = 2 * math.pi / frequency
        smooth = (16 / wavelength - 1) / (4 - 1)
        scaled.append(frequency / 4 * (1 - min(max(smooth, 0), 1)) + frequency * min(max(smooth, 0), 1))
    return scaled


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", [10000.0 ** (-i / 4) for i in range(4)]),
        ("llama_rope_llama3", llama3_frequencies()),
        ("llama_rope_linear", [10000.0 ** (-i / 4) / 4 for i in range(4)]),
        ("gpt_neox", [1.0]),  # a quarter of 8 channels
        ("llama_wide_heads", [10000.0 ** (-i / 8) for i in range(8)]),
    ],
)
def test_frequencies_are_those_of_the_family(family: str, expected: list[float]) -> None:
    rotary = read_factors(interp.load(make_tiny(family)), 1).rotary
    assert rotary is not None
    assert rotary.pairing == "halves"
    assert rotary.frequencies.tolist() == pytest.approx(expected, rel=2e-7)


def test_each_layer_has_its_own_frequencies_in_gemma_3() -> None:
    model = interp.load(make_tiny("gemma3"))  # the first layer has a window and a smaller base
    local, distant = (read_factors(model, layer).rotary for layer in range(2))
    assert local is not None
    assert distant is not None
    assert local.frequencies[-1] > 2 * distant.frequencies[-1]


def test_yarn_scales_queries_and_keys() -> None:
    rotary = read_factors(interp.load(make_tiny("llama_rope_yarn")), 0).rotary
    assert rotary is not None
    assert rotary.amplitude == pytest.approx(0.1 * math.log(4) + 1, rel=1e-6)


def test_a_model_without_rotary_positions_has_no_distance() -> None:
    factors = read_factors(interp.load(make_tiny("gpt2")), 1)
    assert factors.rotary is None
    for distance in (3, "mean"):
        with pytest.raises(InputError, match=r"layer 1 has no rotary positions.*give distance='none'"):
            rotate_keys(factors, distance)


def test_impossible_distances_are_refused() -> None:
    factors = make_factors(make_rotary())
    with pytest.raises(InputError, match="distance=-1 isn't one: give 'none', 'mean' or a number of tokens from 0"):
        rotate_keys(factors, -1)
    with pytest.raises(InputError, match="max_distance=0 was given; a mean needs at least the distance 1"):
        rotate_keys(factors, "mean", max_distance=0)
