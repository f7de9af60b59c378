"""Which patches a sweep consists of: its layers, heads and positions, checked, and in the order in which they run.

Runs begin at the first position that they patch, so the order is by that position.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> tokens = torch.tensor([[0, 1, 2]])
>>> plan = make_plan(model, tokens, tokens, site="z", positions="each", layers=None, heads=None, scored=-1)
>>> plan.shape
(2, 2, 3)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from interp.errors import InputError
from interp.interventions.patch_positions import PatchPositions, Places, Scored, find_places, find_scored
from interp.interventions.patch_result import Site
from interp.interventions.patch_sites import HOOKS, STREAM_SITES, Rows
from interp.models.check import require_hook
from interp.models.weights import n_key_value_heads
from tasks.task import Batch


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The cells of a sweep, and the position at which each example is scored."""

    layers: tuple[int, ...]
    """Layers to patch."""
    heads: tuple[int, ...] | None
    """Heads to patch, key-value heads for `k` and `v`."""
    places: Places
    """Positions of each example to patch, by entry of the position axis."""
    query_heads: tuple[tuple[int, ...], ...] | None
    """The query heads that each of `heads` serves."""
    scored: Int[Tensor, "example"]
    """The scored position of each example, from the front."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[layer, (head), (position)]."""
        axes: list[Sequence[Any] | None] = [self.layers, self.heads, self.places.shared or self.places.labels]
        return tuple(len(axis) for axis in axes if axis is not None)

    @property
    def n_columns(self) -> int:
        """Cells in one layer."""
        return len(self.heads or (0,)) * self.places.at.shape[1]

    def find_jobs(
        self,
        changes: Bool[Tensor, "chunk pos *head"],
        examples: Int[Tensor, "chunk"],
        *,
        only: Bool[Tensor, "cell"] | None = None,
        reach: Literal["before scored", "scored", "everywhere"],
    ) -> Rows:
        """Each patch of these examples that can do something, by ascending position, on the CPU.

        `only` marks cells of the layer, all for None.
        `changes` marks where the two runs differ: other positions of a cell are left out. `reach` says which positions
        have a way to the scored one. The jobs' examples count within the chunk.
        """
        changes = changes.cpu()
        n_positions = changes.shape[1]
        scored = self.scored[examples][:, None, None]
        at = self.places.at[examples]  # [example entry width]
        live = (at >= 0) & (at < n_positions)
        if reach != "everywhere":
            live &= at == scored if reach == "scored" else at <= scored
        if changes.dim() == 2:
            changes = changes[..., None]  # [example pos 1]
        if self.heads is not None:
            changes = changes[..., list(self.heads)]
        row = torch.arange(len(at))[:, None, None]
        differs = live[..., None] & changes[row, at.clamp(0, n_positions - 1)]  # [example entry width head]
        acting = differs.any(dim=2)  # [example entry head]
        if only is not None:
            acting &= only.view(-1, at.shape[1]).T
        example, entry, head = acting.nonzero().unbind(1)
        there = differs[example, entry, :, head]  # [job width]
        position = torch.where(there, at[example, entry], n_positions).sort(dim=1).values
        position = position[:, : int(there.sum(dim=1).max())] if len(there) else position
        order = position[:, :1].argsort(dim=0, stable=True)[:, 0]
        return Rows(
            cell=(head * at.shape[1] + entry)[order],
            example=example[order],
            head=None if self.heads is None else torch.tensor(self.heads)[head[order]],
            position=torch.where(position < n_positions, position, -1)[order],
        )


def make_plan(
    model: Any,
    clean: Int[Tensor, "example pos"],
    corrupted: Int[Tensor, "example pos"],
    *,
    site: Site,
    positions: PatchPositions,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    scored: Scored,
    batch: Batch | None = None,
) -> Plan:
    """The plan of a sweep; one `InputError` for each way in which it can't be done."""
    cfg = model.cfg
    if site not in get_args(Site):
        raise InputError(f"site={site!r} isn't known; use one of {', '.join(get_args(Site))}.")
    if clean.shape != corrupted.shape or clean.dim() != 2 or not clean.numel():
        raise InputError(
            f"The clean tokens have shape {tuple(clean.shape)} and the corrupted ones {tuple(corrupted.shape)}; "
            "give two tensors of token ids of the same shape [example, position], aligned token by token."
        )
    for name, tokens in (("clean", clean), ("corrupted", corrupted)):
        if int(tokens.min()) < 0 or int(tokens.max()) >= cfg.d_vocab:
            raise InputError(
                f"The {name} tokens go from {int(tokens.min())} to {int(tokens.max())}, "
                f"but this model's ids go from 0 to {cfg.d_vocab - 1}."
            )
    _require_site(model, site)
    n_examples, n_positions = clean.shape
    each_scored = find_scored(scored, batch=batch, n_examples=n_examples, n_positions=n_positions)
    n_heads = cfg.n_heads
    if site in ("k", "v") and not getattr(cfg, "ungroup_grouped_query_attention", False):
        n_heads = n_key_value_heads(model)
    chosen = None
    if site not in STREAM_SITES:
        chosen = _choose("head", heads, n_heads, "key-value heads" if n_heads < cfg.n_heads else "heads")
    elif heads is not None:
        raise InputError(f"heads={list(heads)} were given, but {site} isn't made of heads; leave heads out.")
    served = cfg.n_heads // n_heads
    return Plan(
        layers=_choose("layer", layers, cfg.n_layers, "layers"),
        heads=chosen,
        places=find_places(
            positions, batch=batch, scored=each_scored, n_positions=n_positions, causal=is_causal(model)
        ),
        query_heads=None if chosen is None else tuple(tuple(range(i * served, (i + 1) * served)) for i in chosen),
        scored=each_scored,
    )


def is_causal(model: Any) -> bool:
    """Whether no position reads from a later one."""
    return bool(getattr(model.cfg, "attention_dir", "causal") == "causal")


def _require_site(model: Any, site: str) -> None:
    if site != "resid_mid":
        require_hook(model, HOOKS[site])
    elif model.cfg.attn_only or getattr(model.cfg, "parallel_attn_mlp", False):
        why = "has no MLP" if model.cfg.attn_only else "runs attention and MLP side by side"
        raise InputError(f"site={site!r} doesn't exist: this model {why}; use resid_pre, attn_out or resid_post.")
    else:
        require_hook(model, HOOKS["attn_out"])


def _choose(what: str, given: Sequence[int] | None, n: int, all_of_them: str) -> tuple[int, ...]:
    chosen = tuple(range(n)) if given is None else tuple(int(i) for i in given)
    wrong = [i for i in chosen if not 0 <= i < n]
    if wrong:
        raise InputError(f"The {what} {wrong[0]} doesn't exist: this model has {all_of_them} 0 to {n - 1}.")
    if not chosen or len(set(chosen)) < len(chosen):
        raise InputError(f"{what}s={list(chosen)} names none or one twice; give each {what} once.")
    return chosen
