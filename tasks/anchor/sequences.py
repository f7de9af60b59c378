"""Sequences of noise with a few items in known places, of which only the last position is trained and scored.

>>> background = torch.tensor([[50, 51, 52, 53]])
>>> items = {"key": (torch.tensor([0]), torch.tensor([23])), "anchor_1": (torch.tensor([1]), torch.tensor([2]))}
>>> batch = assemble(background, items, target=torch.tensor([24]))
>>> batch.tokens.tolist(), batch.targets[:, -1].tolist(), batch.roles["noise"].tolist()
([[23, 2, 52, 53]], [24], [[False, False, True, False]])
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.task import Batch

Item = tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]
"""Where an item stands and which token it is, row by row."""


def draw_noise(n: int, n_ctx: int, keys: range, generator: torch.Generator) -> Int[Tensor, "n n_ctx"]:
    """Independent tokens, each of `keys` equally likely."""
    return torch.randint(keys.start, keys.stop, (n, n_ctx), generator=generator)


def assemble(
    background: Int[Tensor, "batch pos"], items: Mapping[str, Item], *, target: Int[Tensor, " batch"]
) -> Batch:
    """The batch with `items` put over the background.

    Its roles: each item by its name and `last`, [batch, 1]; `noise`, a mask of the positions that are none of these.
    """
    tokens = background.clone()
    noise = torch.ones_like(tokens, dtype=torch.bool)
    noise[:, -1] = False
    roles: dict[str, Tensor] = {}
    for name, (position, token) in items.items():
        roles[name] = position[:, None]
        tokens.scatter_(1, roles[name], token[:, None])
        noise.scatter_(1, roles[name], False)
    n, n_ctx = tokens.shape
    targets = tokens.roll(-1, dims=1)
    targets[:, -1] = target
    counted = torch.zeros_like(noise)
    counted[:, -1] = True
    roles |= {"noise": noise, "last": torch.full((n, 1), n_ctx - 1)}
    return Batch(tokens=tokens, targets=targets, trained=counted, scored=counted, roles=roles)


def read_role(batch: Batch, role: str) -> Int[Tensor, " batch"]:
    """The token at a role's position in each row."""
    return batch.tokens.gather(1, batch.roles[role])[:, 0]


def predict(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Int[Tensor, " batch"]:
    """The most likely token behind the last position, on the device of the batch."""
    return logits[:, -1].argmax(-1).to(batch.tokens.device)


def is_right(logits: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> Float[Tensor, " batch"]:
    """1 where the prediction is the target."""
    return (predict(logits, batch) == batch.targets[:, -1]).float()
