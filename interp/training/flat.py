"""A model's parameters end to end in one vector, their gradients in another.

    vector      embeddings | other matrices | biases and gains | what isn't trained
    gradient    the same

A model of six layers has a hundred tensors of a few thousand numbers each; as vectors they are clipped and updated by a
handful of kernels in place of hundreds. Each stretch of them decays or doesn't as a whole (`TrainConfig.decayed`), and the
queries', keys' and values' weights of a layer stand side by side, so they can be read as one matrix.

The parameters stay the model's own, as views of their place: whatever reads or writes them in place (an observer, a
checkpoint) acts on the vector. `release` gives them memory of their own again.

>>> from interp.models.build import build
>>> model = build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True, device="cpu")
>>> parameters = FlatParameters(model)
>>> [len(stretch) for stretch in parameters.stretches.values()]
[80, 304, 128]
>>> parameters.vector.zero_().sum(), model.W_E.sum()
(tensor(0.), tensor(0., grad_fn=<SumBackward0>))
"""

import re
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import HookedTransformer

from interp.errors import InputError
from interp.models.initialise import part_of

Stretch = Literal["embedding", "matrix", "other", "fixed"]

_STRETCHES: tuple[Stretch, ...] = ("embedding", "matrix", "other", "fixed")
_ALIGNMENT = 16
"""Numbers; a product is slower where a matrix begins in the middle of a cache line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a parameter stands in the vector."""

    start: int
    """Its first number."""
    shape: tuple[int, ...]
    """Its shape."""
    stretch: Stretch
    """The stretch it is in; `fixed` is not trained."""

    def of(self, vectors: Float[Tensor, "*models number"]) -> Float[Tensor, "..."]:
        """The view of this place, of one vector or of several."""
        return vectors.narrow(-1, self.start, _count(self.shape)).unflatten(-1, self.shape)


class FlatParameters:
    """The parameters of one model; InputError where none of them is trained."""

    def __init__(self, model: HookedTransformer) -> None:
        self.model = model
        self.named = dict(model.named_parameters())
        if not any(parameter.requires_grad for parameter in self.named.values()):
            raise InputError("no parameter of this model requires a gradient: call model.requires_grad_(True) first")
        self.places, ends = _lay_out(self.named)
        kind = next(iter(self.named.values()))
        self.vector = torch.zeros(ends["fixed"], dtype=kind.dtype, device=kind.device)
        self.gradient = torch.zeros_like(self.vector)
        for name, parameter in self.named.items():
            self.places[name].of(self.vector).copy_(parameter.detach())
        self.stretches: dict[Stretch, nn.Parameter] = {}
        self._begins: dict[Stretch, int] = {}
        begin = 0
        for stretch in _STRETCHES[:-1]:
            if ends[stretch] > begin:
                self.stretches[stretch] = nn.Parameter(self.vector[begin : ends[stretch]])
                self._begins[stretch] = begin
            begin = ends[stretch]
        self.move(self.vector, self.gradient)

    def move(self, vector: Float[Tensor, " number"], gradient: Float[Tensor, " number"]) -> None:
        """Go to this memory, with the numbers of now; gradients start at 0."""
        if vector is not self.vector:
            vector.copy_(self.vector)
        self.vector, self.gradient = vector, gradient
        for stretch, part in self.stretches.items():
            here = slice(self._begins[stretch], self._begins[stretch] + len(part))
            part.data, part.grad = vector[here], gradient[here]
        self._gradients: dict[str, Tensor] = {}
        for name, parameter in self.named.items():
            place = self.places[name]
            parameter.grad = None
            parameter.data = place.of(vector)
            if place.stretch != "fixed":
                self._gradients[name] = place.of(gradient)
        self.zero_grad()

    def zero_grad(self) -> None:
        """Set the gradients to 0, and lead to the vector whatever the parameters' gradients were led away to."""
        self.gradient.zero_()
        for name, place in self._gradients.items():
            if self.named[name].grad is not place:
                self.named[name].grad = place

    def split(self, stretches: dict[Stretch, Float[Tensor, " number"]]) -> dict[str, Float[Tensor, "..."]]:
        """The view of each trained parameter, of vectors that are laid out as the stretches."""
        views = {}
        for name, place in self.places.items():
            if place.stretch in stretches:
                start = place.start - self._begins[place.stretch]
                views[name] = stretches[place.stretch].narrow(0, start, _count(place.shape)).view(place.shape)
        return views

    def release(self) -> None:
        """Give each parameter memory of its own, without a gradient."""
        for parameter in self.named.values():
            parameter.data, parameter.grad = parameter.data.clone(), None


def joint_name(name: str) -> str:
    """`W_QKV` for the weights of queries, keys and values alike, `b_QKV` for their biases; else the name itself."""
    return re.sub(r"\.([Wb])_[QKV]$", r".\1_QKV", name)


def _lay_out(named: dict[str, nn.Parameter]) -> tuple[dict[str, Place], dict[Stretch, int]]:
    """The place of each parameter, and where each stretch ends."""
    stretch_of = {name: _find_stretch(name, parameter) for name, parameter in named.items()}
    order = {name: index for index, name in reversed([*enumerate(map(joint_name, named))])}
    places: dict[str, Place] = {}
    ends: dict[Stretch, int] = {}
    start, before = 0, ""
    for stretch in _STRETCHES:
        for name in sorted(
            (one for one in named if stretch_of[one] == stretch), key=lambda one: order[joint_name(one)]
        ):
            if joint_name(name) != before:
                start, before = _align(start), joint_name(name)
            places[name] = Place(start=start, shape=tuple(named[name].shape), stretch=stretch)
            start += named[name].numel()
        start = ends[stretch] = _align(start)
    return places, ends


def _find_stretch(name: str, parameter: nn.Parameter) -> Stretch:
    if not parameter.requires_grad:
        return "fixed"
    part = part_of(name)
    if part is None:
        return "other"
    return "embedding" if part == "embedding" else "matrix"


def _align(number: int) -> int:
    return -(-number // _ALIGNMENT) * _ALIGNMENT


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
