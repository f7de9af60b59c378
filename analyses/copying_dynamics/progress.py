"""What is watched while a model learns to copy: two attention scores and how two heads compose.

With s1, s2 the starts of the two copies and L their length,

    previous token   mean over i of A[i, i - 1]
    induction        mean over t in [s2, s2 + L - 1) of A[t, t - (s2 - s1) + 1]
    Z / sqrt(k)      does W_QK of a reader undo W_OV of a writer below it (`interp.circuits.diagonal`), in [-1, 1]
    match            do the top r directions that the reader's keys read agree with those the writer writes, in [0, 1]
    bridge share     ||W_OV V||^2 / ||W_OV||^2: how much of what the writer writes lies in those directions V; r / d by chance

(Song, Xu and Zhong, arXiv 2408.09503, figure 3 and their public code). Each is that of the best head, or of the best pair
of a writer and a reader above it. In a model of one layer there is no such pair; there the layer is paired with itself,
which is a control: nothing it writes reaches its own keys.

>>> from interp.models.build import build
>>> model = build(n_layers=2, d_model=16, n_heads=1, d_vocab=64, n_ctx=64, attn_only=True)
>>> list(Progress(task=Copying(), n=4, rank=4)(model, 0))
['previous_token', 'induction', 'diagonal', 'match_largest', 'match_rms', 'bridge_share']
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.circuits.composition import Circuit, reading_circuit, writing_circuit
from interp.circuits.diagonal import diagonal_scores
from interp.circuits.factors import read_factors
from interp.circuits.subspaces import match_bases, top_directions
from interp.interventions.hooks import HookFunction, add_hooks
from interp.models.forward import run_until
from tasks.copying import Copying
from tasks.seeding import derive_seed
from tasks.task import Batch

MEASURES = {
    "previous_token": "previous-token attention",
    "induction": "induction attention",
    "diagonal": "Z / √d_head",
    "match_rms": "subspace match",
    "match_largest": "subspace match, largest",
    "bridge_share": "bridge share",
}
"""Columns of the history, as they are called in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """An observer for `interp.train`: its numbers join the history at every evaluation."""

    task: Copying
    """What is trained; attention is measured on its sequences out of distribution."""
    n: int = 32
    """Sequences."""
    rank: int = 10
    """Directions that are matched."""
    seed: int = 0
    """Seed of the sequences, which are not those of the evaluation."""

    def __call__(self, model: HookedTransformer, step: int) -> dict[str, float]:
        batch = self.task.sample(self.n, split="ood", seed=derive_seed(self.seed, "progress"))
        return {**measure_attention(model, batch), **measure_composition(model, rank=self.rank)}


@torch.no_grad()
def measure_attention(model: HookedTransformer, batch: Batch) -> dict[str, float]:
    """The strongest `previous_token` and `induction` attention of any head, a mean over the sequences."""
    previous, induction = _read_patterns(model, batch)
    return {"previous_token": float(previous.max()), "induction": float(induction.max())}


@torch.no_grad()
def measure_composition(model: HookedTransformer, *, rank: int) -> dict[str, float]:
    """Z / sqrt(d_head), both subspace matches and the bridge share of the best pair; of a single layer with itself."""
    layers = [read_factors(model, layer) for layer in range(model.cfg.n_layers)]
    pairs = [(writer, reader) for writer in layers for reader in layers if writer.layer < reader.layer]
    pairs = pairs or [(layers[0], layers[0])]
    found: dict[str, float] = {}
    for writer, reader in pairs:
        reading, writing = reading_circuit(reader), writing_circuit(writer)
        read, written = top_directions(reading, rank=rank), top_directions(writing, rank=rank)
        scores = {
            "diagonal": diagonal_scores(writer, reader) / math.sqrt(reader.d_head),
            "match_largest": match_bases(read, written, score="largest"),
            "match_rms": match_bases(read, written, score="rms"),
            "bridge_share": _share_within(writing, read),
        }
        found = {name: max(found.get(name, -math.inf), float(values.max())) for name, values in scores.items()}
    return found


def _share_within(
    writing: Circuit, basis: Float[Tensor, "reader_head d_model rank"]
) -> Float[Tensor, "reader_head writer_head"]:
    """The share of ||W_OV||^2 that lies in each basis; 0 of a head that writes nothing."""
    written = writing.summary.triangle @ writing.inner  # as W_OV, up to a rotation of what it reads
    inside = torch.einsum("wkd,rdj->rwkj", written, basis).square().sum((-2, -1))
    return inside / written.square().sum((-2, -1)).clamp_min(torch.finfo(written.dtype).tiny)


def _read_patterns(
    model: HookedTransformer, batch: Batch
) -> tuple[Float[Tensor, "layer head"], Float[Tensor, "layer head"]]:
    """Mean previous-token and induction attention of each head."""
    source, copy = batch.roles["source_start"], batch.roles["copy_start"]  # [batch, 1]
    position = torch.arange(batch.tokens.shape[1])
    queries = (position >= copy) & (position < copy + batch.roles["segment_length"] - 1)  # [batch, pos]
    keys = (position - (copy - source) + 1).clamp(0, len(position) - 1)
    found: list[tuple[Tensor, Tensor]] = []

    def reduce(pattern: Tensor, hook: HookPoint) -> None:
        there = keys.to(pattern.device)[:, None, :, None].expand(-1, pattern.shape[1], -1, 1)
        on_copy = pattern.gather(3, there).squeeze(3) * queries.to(pattern.device)[:, None]  # [batch, head, pos]
        per_head = (on_copy.sum(2) / queries.sum(1, keepdim=True).to(pattern.device)).mean(0)
        found.append((pattern.diagonal(-1, 2, 3).mean((0, 2)).cpu(), per_head.cpu()))

    last = f"blocks.{model.cfg.n_layers - 1}.attn.hook_pattern"
    hooks: list[tuple[str, HookFunction]] = [
        (f"blocks.{layer}.attn.hook_pattern", reduce) for layer in range(model.cfg.n_layers)
    ]
    with add_hooks(model, hooks):
        run_until(model, batch.tokens.to(model.cfg.device), last)
    previous, induction = zip(*found, strict=True)
    return torch.stack(previous), torch.stack(induction)
