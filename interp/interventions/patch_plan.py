"""Which patches a sweep consists of: its layers, heads and positions, checked, and in the order in which they run.

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
from interp.interventions.patch_result import Site
from interp.interventions.patch_sites import HOOKS, STREAM_SITES, Rows
from interp.models.check import require_hook
from interp.models.weights import n_key_value_heads


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """The cells of a sweep, and the position at which each example is scored."""

    layers: tuple[int, ...]
    """Layers to patch."""
    heads: tuple[int, ...] | None
    """Heads to patch, key-value heads for `k` and `v`."""
    positions: tuple[int, ...] | None
    """Positions to patch, or None for all together."""
    query_heads: tuple[tuple[int, ...], ...] | None
    """The query heads that each of `heads` serves."""
    scored: Int[Tensor, "example"]
    """The scored position of each example, from the front."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[layer, (head), (position)]."""
        return tuple(len(axis) for axis in (self.layers, self.heads, self.positions) if axis is not None)

    @property
    def n_columns(self) -> int:
        """Cells in one layer."""
        return len(self.heads or (0,)) * len(self.positions or (0,))

    def find_jobs(
        self, changes: Bool[Tensor, "example pos *head"], scored: Int[Tensor, "example"] | None
    ) -> Int[Tensor, "job 2"]:
        """(cell of the layer, example) for each patch that can do something, by ascending position.

        `changes` marks where the two runs differ. `scored` is given where only a patch of the scored position counts.
        """
        n_positions = changes.shape[1]
        if scored is not None:
            here = torch.arange(n_positions, device=changes.device) == scored.to(changes.device)[:, None]
            changes = changes & here.view(*here.shape, *[1] * (changes.dim() - 2))
        if changes.dim() == 2:
            changes = changes[..., None]  # [example pos 1]
        if self.heads is not None:
            changes = changes[..., list(self.heads)]
        if self.positions is None:
            changed = changes.any(dim=1, keepdim=True)  # [example 1 head]
        else:
            changed = changes.new_zeros(len(changes), len(self.positions), changes.shape[2])
            known = [i for i, position in enumerate(self.positions) if position < n_positions]
            changed[:, known] = changes[:, [self.positions[i] for i in known]]
        order = torch.arange(changed.shape[1])
        if self.positions is not None:
            order = torch.tensor(self.positions).argsort()
        place, head, example = changed[:, order].permute(1, 2, 0).nonzero().cpu().unbind(1)
        return torch.stack([head * changed.shape[1] + order[place], example], dim=1)

    def make_rows(self, jobs: Int[Tensor, "job 2"], device: torch.device) -> Rows:
        """The heads and positions of jobs, as the engine takes them."""
        cell, example = jobs.unbind(1)
        n_positions = len(self.positions or (0,))
        head = position = None
        if self.heads is not None:
            head = torch.tensor(self.heads)[cell // n_positions].to(device)
        if self.positions is not None:
            position = torch.tensor(self.positions)[cell % n_positions].to(device)
        return Rows(example=example.to(device), head=head, position=position)


def make_plan(
    model: Any,
    clean: Int[Tensor, "example pos"],
    corrupted: Int[Tensor, "example pos"],
    *,
    site: Site,
    positions: Literal["each", "all"] | Sequence[int],
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    scored: int | Sequence[int] | Int[Tensor, "example"],
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
    each_scored = torch.as_tensor(scored)
    if each_scored.dim() > 1 or (each_scored.dim() == 1 and len(each_scored) != n_examples):
        raise InputError(
            f"scored has shape {tuple(each_scored.shape)} for {n_examples} examples; "
            "give one position, or one for each example."
        )
    each_scored = torch.tensor(_find_positions(each_scored.reshape(-1).tolist(), n_positions)).expand(n_examples)

    n_heads = cfg.n_heads
    if site in ("k", "v") and not getattr(cfg, "ungroup_grouped_query_attention", False):
        n_heads = n_key_value_heads(model)
    chosen = None
    if site not in STREAM_SITES:
        chosen = _choose("head", heads, n_heads, "key-value heads" if n_heads < cfg.n_heads else "heads")
    elif heads is not None:
        raise InputError(f"heads={list(heads)} were given, but {site} isn't made of heads; leave heads out.")
    if isinstance(positions, str) and positions not in ("each", "all"):
        raise InputError(f"positions={positions!r} isn't known; use 'each', 'all' or a list of positions.")
    listed = range(n_positions) if isinstance(positions, str) else positions
    served = cfg.n_heads // n_heads
    return Plan(
        layers=_choose("layer", layers, cfg.n_layers, "layers"),
        heads=chosen,
        positions=None if isinstance(positions, str) and positions == "all" else _find_positions(listed, n_positions),
        query_heads=None if chosen is None else tuple(tuple(range(i * served, (i + 1) * served)) for i in chosen),
        scored=each_scored,
    )


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


def _find_positions(given: Sequence[int], n: int) -> tuple[int, ...]:
    """Positions counted from the front."""
    wrong = [i for i in given if not -n <= i < n]
    if wrong:
        raise InputError(f"The position {wrong[0]} doesn't exist: the examples have positions 0 to {n - 1}.")
    if not given:
        raise InputError("positions=[] names none; give at least one, or 'each' or 'all'.")
    return tuple(int(i) % n for i in given)
