"""Take heads out of what chosen readers read, while everybody else sees their real output.

With x_r the stream that receiver r reads and d_h = (replacement of z_h) - z_h at each ablated head h of an earlier layer, the
receiver's queries, keys or values are computed again from

    x_r' = x_r + sum over h of d_h W_O,h

so only the direct paths h -> r are cut: what the MLPs and heads between make of h still arrives. Writing the stream as
this sum is that of Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", section "Residual stream".

Everything happens in the pass that runs. Where it comes to a receiver's block, that block is run a second time on x_r' as
far as the receiver, by the model's own modules, so norms, biases and precision are the model's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.errors import InputError
from interp.interventions.hooks import HookFunction, add_hooks, lift_hooks
from interp.interventions.paths import ReadKind, Reads, Receiver, group_receivers, last_reader, require_before
from interp.models.check import require_hook
from interp.models.post_norm import PostNormTransformer
from interp.models.weights import output_weights
from tasks.seeding import derive_generator

Edit = Callable[..., Tensor]
"""A hook function that returns the edited z [batch pos head_index d_head]."""


@contextmanager
def ablate_reads(
    model: Any, edits: dict[int, Edit], into: Sequence[Receiver | Literal["logits"]] | Literal["logits"]
) -> Iterator[None]:
    """`edits` {layer: its edit of z} as seen by the receivers alone; undone when the block ends.

    Raises `InputError` for a receiver that doesn't exist, a head that no receiver comes after, and a model in which the
    stream isn't the sum of what heads write.
    """
    reads, logits = group_receivers(model, into)
    require_before(list(edits), last_reader(model, reads, logits))
    _require_sum(model, list(edits))
    path = _Path(model, edits, reads, logits)
    handles = [
        model.blocks[layer].register_forward_pre_hook(path.note_call(layer), with_kwargs=True) for layer in reads
    ]
    handles.append(model.blocks[path.last].register_forward_hook(path.forget))
    try:
        with add_hooks(model, path.hooks()):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Reached(Exception):
    """Unwinds the second run of a block, of one `_Path`."""


class _Path:
    """What one pass finds on its way: the heads' changes, and what the receivers make of them."""

    def __init__(self, model: Any, edits: dict[int, Edit], reads: Reads, logits: bool) -> None:
        self.model, self.edits, self.reads, self.logits = model, edits, reads, logits
        self.last = model.cfg.n_layers - 1 if logits else max(reads)
        self.changes: dict[int, Float[Tensor, "batch pos d_model"]] = {}
        self.calls: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.read: dict[ReadKind, Tensor] = {}
        self.stop: _Reached | None = None
        """Set while a block runs a second time."""

    def hooks(self) -> list[tuple[str, HookFunction]]:
        hooks = [(f"blocks.{layer}.attn.hook_z", self._note_change(layer)) for layer in self.edits]
        for layer, kinds in self.reads.items():
            hooks.append((f"blocks.{layer}.hook_resid_pre", self._read_again(layer)))
            hooks += [(f"blocks.{layer}.attn.hook_{kind}", self._replace_read(layer, kind)) for kind in kinds]
        if self.logits:
            hooks.append((f"blocks.{self.last}.hook_resid_post", self._change_final))
        return hooks

    def note_call(self, layer: int) -> Callable[..., None]:
        """Keeps how the model calls a block: its mask and positions."""

        def note(block: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.calls[layer] = (args, kwargs)

        return note

    def forget(self, block: Any, args: tuple[Any, ...], output: Any) -> None:
        """After the last receiver's block: the next pass has changes of its own."""
        self.changes.clear()
        self.calls.clear()

    def _note_change(self, layer: int) -> HookFunction:
        def note(z: Float[Tensor, "batch pos head_index d_head"], hook: HookPoint) -> None:
            moved = self.edits[layer](z, hook=hook) - z
            self.changes[layer] = torch.einsum("bphd,hdm->bpm", moved, output_weights(self.model, layer).to(z.dtype))

        return note

    def _read_again(self, layer: int) -> HookFunction:
        def read(stream: Float[Tensor, "batch pos d_model"], hook: HookPoint) -> None:
            if self.stop is not None:
                return
            self.read = {}
            args, kwargs = self.calls[layer]
            changed = self._add_changes(stream, layer)
            if not args:
                kwargs = {**kwargs, "hidden_states": changed}
            self.stop = _Reached()
            try:
                self.model.blocks[layer].forward(*((changed, *args[1:]) if args else ()), **kwargs)
            except _Reached as reached:
                if reached is not self.stop:
                    raise
            finally:
                self.stop = None

        return read

    def _replace_read(self, layer: int, kind: ReadKind) -> HookFunction:
        heads, last = self.reads[layer][kind], set(self.reads[layer])

        def replace(activation: Float[Tensor, "batch pos head_index d_head"], hook: HookPoint) -> Tensor | None:
            if self.stop is not None:
                self.read[kind] = activation
                if set(self.read) == last:
                    raise self.stop
                return None
            edited = activation.clone()
            edited[:, :, heads] = self.read[kind][:, :, heads]
            return edited

        return replace

    def _change_final(self, stream: Float[Tensor, "batch pos d_model"], hook: HookPoint) -> Tensor:
        return self._add_changes(stream, self.model.cfg.n_layers)

    def _add_changes(self, stream: Float[Tensor, "batch pos d_model"], layer: int) -> Tensor:
        before = [sender for sender in self.edits if sender < layer]
        missing = [sender for sender in before if sender not in self.changes]
        if missing:
            raise InputError(
                f"The pass began after layer {missing[0]}, in which heads are ablated, so what they write isn't known; "
                "run the model from its first layer."
            )
        return stream + sum(self.changes[sender] for sender in before)


@torch.no_grad()
def _require_sum(model: Any, layers: list[int]) -> None:
    """`InputError` where a head's z does not enter the stream as z W_O: some families normalise what a layer writes.

    Probed by one pass with a row for each layer, in which z is moved and the layer's MLP held: the stream must move by
    (change of z) W_O.
    """
    cfg = model.cfg
    has_mlp = not getattr(cfg, "attn_only", False)
    refusal = InputError(
        "In this model a layer's attention is normalised after its heads are summed, so one head's part of the stream "
        "can't be taken out by itself; leave out `into` to ablate heads for every reader."
    )
    if isinstance(model, PostNormTransformer):
        raise refusal
    if isinstance(model, HookedTransformer) and not (
        cfg.use_normalization_before_and_after or str(cfg.original_architecture).startswith("Olmo")
    ):
        return
    for kind in ("hook_resid_pre", *(["hook_mlp_out"] if has_mlp else [])):
        require_hook(model, kind)
    generator = derive_generator(0, "linearity probe")
    device = next(model.parameters()).device
    tokens = (
        torch.randint(cfg.d_vocab, (1, min(4, cfg.n_ctx)), generator=generator).repeat(1 + len(layers), 1).to(device)
    )
    errors: list[float] = []

    def probe(row: int, layer: int) -> list[tuple[str, HookFunction]]:
        expected: list[Tensor] = []

        def move(z: Tensor, hook: HookPoint) -> Tensor:
            edited = z.clone()
            step = torch.randn(z[row].shape, generator=generator).to(z) * (1 + z[row].abs().mean())
            edited[row] = z[0] + step
            expected.append(torch.einsum("phd,hdm->pm", step, output_weights(model, layer).to(z.dtype)))
            return edited

        def hold(out: Tensor, hook: HookPoint) -> Tensor:
            held = out.clone()
            held[row] = out[0]
            return held

        def compare(stream: Tensor, hook: HookPoint) -> None:
            found = stream[row] - stream[0]
            errors.append(float((found - expected[0]).abs().max() / expected[0].abs().max()))

        hooks = [(f"blocks.{layer}.attn.hook_z", move), (f"blocks.{layer}.hook_resid_post", compare)]
        return hooks + ([(f"blocks.{layer}.hook_mlp_out", hold)] if has_mlp else [])

    with (
        lift_hooks(model),
        add_hooks(model, [hook for row, layer in enumerate(layers, 1) for hook in probe(row, layer)]),
    ):
        model(tokens)
    if not all(error <= 0.05 for error in errors):
        raise refusal
