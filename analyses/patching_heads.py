"""What the heads of an indirect-object sentence look at, and what they write to the logits directly.

Attention between the named positions tells a head that reads the receiver's name (last -> IO) from one that reads that
S came twice (last -> S2, S2 -> S1). The direct effect of head h of layer l is what it adds to the logit difference by
itself, past all later layers (Wang et al. 2022, arXiv:2211.00593, section 3.1):

    (z_h W_O,h / scale) . gain * (W_U[:, IO] - W_U[:, S])

at the last position, with the scale of the last norm as it was in this run; where that norm subtracts the mean, so does this.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.interventions.hooks import HookFunction, add_hooks
from interp.models.post_norm import PostNormTransformer
from interp.models.weights import final_norm_gain, output_weights, unembedding
from tasks.prompts.ioi import IOIBatch

EDGES = (("last", "IO"), ("last", "S1"), ("last", "S2"), ("S2", "S1"), ("S2", "S1+1"))
"""(query, key) whose attention is kept."""


def name_edge(query: str, key: str) -> str:
    """`last to IO`."""
    return f"{query} to {key}"


@torch.no_grad()
def read_heads(model: Any, prompts: IOIBatch) -> dict[str, Float[np.ndarray, "prompt layer head"]]:
    """Attention along `EDGES`, and `direct effect`; the latter NaN where a norm stands between heads and stream."""
    cfg = model.cfg
    rows = torch.arange(len(prompts), device=cfg.device)
    places = {role: positions[:, 0].to(cfg.device) for role, positions in prompts.roles.items()}
    found: dict[str, list[Tensor]] = {name_edge(*edge): [] for edge in EDGES}
    outputs: list[Tensor] = []
    final: list[Tensor] = []

    def keep_attention(pattern: Float[Tensor, "prompt head query_pos key_pos"], hook: HookPoint) -> None:
        for query, key in EDGES:
            found[name_edge(query, key)].append(pattern[rows, :, places[query], places[key]].float())

    def keep_output(z: Float[Tensor, "prompt pos head d_head"], hook: HookPoint) -> None:
        outputs.append(z[rows, places["last"]].clone())

    def keep_final(residual: Float[Tensor, "prompt pos d_model"], hook: HookPoint) -> None:
        final.append(residual[rows, places["last"]].float())

    hooks: list[tuple[str, HookFunction]] = []
    for layer in range(cfg.n_layers):
        hooks += [
            (f"blocks.{layer}.attn.hook_pattern", keep_attention),
            (f"blocks.{layer}.attn.hook_z", keep_output),
        ]
    with add_hooks(model, [*hooks, (f"blocks.{cfg.n_layers - 1}.hook_resid_post", keep_final)]):
        model(prompts.tokens.to(cfg.device), return_type=None)
    direction = _find_direction(model, prompts, final[0])
    found["direct effect"] = [
        torch.einsum("phd,hdm,pm->ph", z, output_weights(model, layer), direction.to(z)).float()
        for layer, z in enumerate(outputs)
    ]
    if not _writes_to_stream(model):
        found["direct effect"] = [torch.full_like(effect, torch.nan) for effect in found["direct effect"]]
    return {name: torch.stack(layers, dim=1).cpu().numpy() for name, layers in found.items()}


def _find_direction(
    model: Any, prompts: IOIBatch, final: Float[Tensor, "prompt d_model"]
) -> Float[Tensor, "prompt d_model"]:
    """What the residual stream at the last position is multiplied with to give the logit difference."""
    cfg = model.cfg
    columns = unembedding(model).float()
    difference = (
        columns[:, prompts.io.to(columns.device)] - columns[:, prompts.s.to(columns.device)]
    )  # [d_model prompt]
    direction = difference.T * final_norm_gain(model).float()
    kind = cfg.normalization_type or ""
    if kind.startswith("LN"):
        direction = direction - direction.mean(dim=-1, keepdim=True)
        final = final - final.mean(dim=-1, keepdim=True)
    if not kind:
        return direction
    return direction / (final.square().mean(dim=-1, keepdim=True) + cfg.eps).sqrt()


def _writes_to_stream(model: Any) -> bool:
    """Whether what a head writes is added to the residual stream as it is."""
    cfg = model.cfg
    return not (
        getattr(cfg, "use_normalization_before_and_after", False)
        or str(getattr(cfg, "original_architecture", "")).startswith("Olmo")
        or isinstance(model, PostNormTransformer)
    )
