"""Take attention heads out of a model for the time of a block.

A head h of layer l writes z_h W_O,h into the residual stream. Ablation replaces z_h, before W_O:

- `zero`: z_h = 0, the published head removal (Song, Xu & Zhong, arXiv 2408.09503, section "removing induction heads").
  It also takes out what the head writes whatever it reads.
- `mean`: z_h = its mean over sequences and positions of `reference`, so only what varies is removed.
- `resample`: z_h = the head's output at the same position of another sequence, of `reference` or, without one, of the
  batch that is running (a random permutation without fixed points), so the model stays on its usual activations.

With `into=` only chosen readers see the replacement: see `ablate_paths`.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> with interp.ablate_heads(model, [(1, 0)]):
...     logits = model(torch.tensor([[0, 1, 2]]))
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.errors import InputError
from interp.interventions.ablate_paths import Edit, ablate_reads
from interp.interventions.hooks import add_hooks
from interp.interventions.paths import Receiver
from interp.interventions.select import Head, Marker, Positions, group_heads, resolve_positions
from interp.models.check import require_hook
from interp.models.forward import run_until
from interp.models.tokens import usable_vocabulary
from tasks.copying import repeated_tokens
from tasks.seeding import derive_generator
from tasks.task import Batch

AblationMode = Literal["zero", "mean", "resample"]


@contextmanager
def ablate_heads(
    model: Any,
    heads: Sequence[Head],
    *,
    mode: AblationMode = "zero",
    reference: Int[Tensor, "sequence pos"] | None = None,
    seed: int = 0,
    positions: Positions | None = None,
    batch: Batch | None = None,
    into: Sequence[Receiver | Literal["logits"]] | Literal["logits"] | None = None,
) -> Iterator[None]:
    """Replace the outputs of `heads`, only at `positions` where given; undone when the block ends, also by an exception.

    `reference` are the sequences that `mean` averages over (32 sequences of random tokens when not given) and that
    `resample` draws from. `positions` are indices that the batch shares, indices of each row, a mask, or names of
    `batch.roles`.

    `into` restricts the removal to what these receivers read directly, while everybody else reads the heads' real output:
    `(layer, head, "q")`, `"k"` or `"v"`, where heads of k and v are key-value heads, or `"logits"`, the stream after the
    last block. MLPs and heads between pass on what they read of the real output.

    Raises `InputError` for a head that doesn't exist, an unknown mode, a reference that is shorter than the input, a batch
    of one for `resample` without a reference, and for `into` a receiver that doesn't exist or isn't after the heads.
    """
    by_layer = group_heads(model, heads)
    if mode not in get_args(AblationMode):
        raise InputError(f"mode={mode!r} isn't known; use one of {', '.join(get_args(AblationMode))}.")
    require_hook(model, "attn.hook_z")
    edits = {
        layer: _replacement(model, layer, chosen, mode=mode, reference=reference, seed=seed)
        for layer, chosen in by_layer.items()
    }
    if positions is not None:
        mark = resolve_positions(positions, argument="positions", batch=batch)
        edits = {layer: _only_at(mark, edit) for layer, edit in edits.items()}
    if into is not None:
        with ablate_reads(model, edits, into):
            yield
        return
    with add_hooks(model, [(f"blocks.{layer}.attn.hook_z", edit) for layer, edit in edits.items()]):
        yield


def _replacement(
    model: Any, layer: int, chosen: list[int], *, mode: AblationMode, reference: Tensor | None, seed: int
) -> Edit:
    if mode == "zero":
        return _write(chosen, lambda z: torch.zeros_like(z))
    if mode == "mean":
        outputs = _reference_outputs(model, layer, chosen, reference if reference is not None else _random(model, seed))
        mean = outputs.mean(dim=(0, 1))  # [chosen d_head]
        return _write(chosen, lambda z: mean.to(z).expand_as(z))
    generator = derive_generator(seed, "resample", layer)
    if reference is None:
        return _write(chosen, lambda z: z[_derangement(len(z), generator).to(z.device)])
    outputs = _reference_outputs(model, layer, chosen, reference)
    return _write(chosen, lambda z: _draw(outputs, z, generator))


def _write(chosen: list[int], replace: Any) -> Edit:
    def edit(z: Float[Tensor, "batch pos head_index d_head"], hook: HookPoint) -> Tensor:
        edited = z.clone()
        edited[:, :, chosen] = replace(z[:, :, chosen])
        return edited

    return edit


def _only_at(mark: Marker, edit: Edit) -> Edit:
    def edit_there(z: Float[Tensor, "batch pos head_index d_head"], hook: HookPoint) -> Tensor:
        marked = mark(*z.shape[:2])
        if not marked.any():
            raise InputError("positions choose no position of the batch that runs; leave them out to take every one.")
        return torch.where(marked[:, :, None, None].to(z.device), edit(z, hook=hook), z)

    return edit_there


def _reference_outputs(
    model: Any, layer: int, chosen: list[int], reference: Int[Tensor, "sequence pos"]
) -> Float[Tensor, "sequence pos chosen d_head"]:
    return run_until(model, reference.to(model.cfg.device), f"blocks.{layer}.attn.hook_z")[:, :, chosen].clone()


def _random(model: Any, seed: int) -> Int[Tensor, "sequence pos"]:
    vocabulary = usable_vocabulary(model)
    return repeated_tokens(
        n=32,
        segment=min(32, model.cfg.n_ctx, len(vocabulary)),
        copies=1,
        vocabulary=vocabulary,
        bos=None,
        generator=derive_generator(seed, "ablation reference"),
    )


def _draw(outputs: Tensor, z: Tensor, generator: torch.Generator) -> Tensor:
    if outputs.shape[1] < z.shape[1]:
        raise InputError(
            f"The reference has {outputs.shape[1]} positions, but the input has {z.shape[1]}; "
            "give reference sequences that are at least as long."
        )
    rows = torch.randint(len(outputs), (len(z),), generator=generator)
    return outputs[rows.to(outputs.device), : z.shape[1]].to(z)


def _derangement(n: int, generator: torch.Generator) -> Int[Tensor, "n"]:
    """A random cyclic order: each sequence gets the output of another one."""
    if n < 2:
        raise InputError(
            "mode='resample' without a reference takes the outputs of other sequences of the batch, but the batch "
            "has one sequence; give a larger batch or `reference=`."
        )
    order = torch.randperm(n, generator=generator)
    successor = torch.empty(n, dtype=torch.long)
    successor[order] = order.roll(1)
    return successor
