"""Rotary positions as what they are: an angle per pair of channels that grows with the position.

A pair (x1, x2) of a query or key at position p is turned by p * theta (Su et al. 2021, arXiv:2104.09864):

    x1' = x1 cos(p theta) - x2 sin(p theta)        x2' = x2 cos(p theta) + x1 sin(p theta)

so a logit depends on the distance D = query position - key position alone: q' . k' = q . k'', where k'' is k turned back
by D * theta. Families differ in which channels are a pair: `halves` (i, i + n/2) in Llama, Mistral, Gemma, Qwen and
GPT-NeoX, `adjacent` (2i, 2i + 1) in GPT-J. Only the first `width` channels turn, the others stay (GPT-NeoX turns a
quarter). Frequencies are taken from the tables of cosines and sines that a model computes with, so that base, scaling
and partial rotation are those of the model, and nothing is derived from a configuration.

>>> rotary = Rotary(frequencies=torch.tensor([1.0]), pairing="halves")
>>> rotary.turn(torch.tensor([1.0, 0.0]), torch.tensor(2)).tolist()
[-0.416..., 0.909...]
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.errors import InputError

Pairing = Literal["halves", "adjacent"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rotary:
    """How the queries and keys of a layer turn with their position."""

    frequencies: Float[Tensor, "pair"]
    """Radians per position of each pair of channels, best in float64: an error grows with the distance."""
    pairing: Pairing
    """Which channels are a pair: `halves` (i, i + width/2), `adjacent` (2i, 2i + 1)."""
    amplitude: float = 1.0
    """What turned channels are multiplied by, in queries and in keys: 1, except where YaRN scales them."""

    @property
    def width(self) -> int:
        """How many channels turn; those after them stay."""
        return 2 * len(self.frequencies)

    def turn(self, x: Float[Tensor, "*batch d_head"], position: Int[Tensor, "..."]) -> Float[Tensor, "*batch d_head"]:
        """Queries or keys `x` as they are at `position`, which broadcasts against all axes of `x` but the last."""
        angles = position.double().cpu()[..., None] * self.frequencies.double().cpu()  # [... pair]
        return self._mix(x, self.amplitude * angles.cos(), self.amplitude * angles.sin())

    def turn_back(
        self, keys: Float[Tensor, "*batch d_head"], distances: Int[Tensor, "distance"]
    ) -> Float[Tensor, "*batch d_head"]:
        """Keys as unturned queries find them, query position - key position = distance; averaged over `distances`."""
        angles = distances.double().cpu()[:, None] * self.frequencies.double().cpu()  # [distance pair]
        power = self.amplitude**2  # queries have it as well
        return self._mix(keys, power * angles.cos().mean(0), -power * angles.sin().mean(0))

    def _mix(self, x: Tensor, cos: Float[Tensor, "*batch pair"], sin: Float[Tensor, "*batch pair"]) -> Tensor:
        cos, sin = cos.to(x), sin.to(x)
        if self.pairing == "halves":
            first, second, rest = x.split([self.width // 2, self.width // 2, x.shape[-1] - self.width], dim=-1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
        first, second, rest = x[..., : self.width : 2], x[..., 1 : self.width : 2], x[..., self.width :]
        turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
        return torch.cat([turned, rest], dim=-1)


def read_tables(cos: Float[Tensor, "pos width"], sin: Float[Tensor, "pos width"], *, pairing: Pairing) -> Rotary:
    """The rotation behind tables of cosines and sines by position, in which both channels of a pair have the same angle.

    The angle at position 1 gives each frequency; positions 2, 4, 8, ... make it more exact, which half precision needs.
    Raises `InputError` for tables of fewer than two positions, an odd width, or two angles within a pair.
    """
    n_positions, width = cos.shape
    if n_positions < 2 or width % 2:
        raise InputError(
            f"Tables of cosines and sines need two positions and an even width, but these are {n_positions} by {width}."
        )
    cos, sin = cos.double().cpu(), sin.double().cpu()
    amplitude = cos[0].mean().item()  # at position 0 nothing has turned
    angle = torch.atan2(sin, cos)  # [pos width], from -pi to pi
    frequencies = angle[1]
    position = 2
    while position < n_positions:
        expected = position * frequencies
        turns = torch.round((expected - angle[position]) / (2 * torch.pi))
        frequencies = (angle[position] + 2 * torch.pi * turns) / position
        position *= 2
    in_halves, interleaved = frequencies[: width // 2], frequencies[::2]
    if torch.equal(in_halves, frequencies[width // 2 :]):
        frequencies = in_halves
    elif torch.equal(interleaved, frequencies[1::2]):
        frequencies = interleaved
    else:
        raise InputError("These tables of cosines and sines have no pairs of channels with the same angle.")
    return Rotary(frequencies=frequencies, pairing=pairing, amplitude=amplitude)
