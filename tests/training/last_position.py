"""The smallest task whose last position alone is trained: which token stood `shift` positions before the end?"""

from dataclasses import dataclass

import torch

from tasks.seeding import derive_generator
from tasks.task import Batch


@dataclass(frozen=True, kw_only=True)
class LastPosition:
    """Uniform random tokens."""

    d_vocab: int
    n_ctx: int
    shift: int = 3
    name: str = "last position"
    splits: tuple[str, ...] = ("train", "id")

    def sample(self, n, *, split, seed):
        generator = derive_generator(seed, "last position", split)
        tokens = torch.randint(self.d_vocab, (n, self.n_ctx), generator=generator)
        last = (torch.arange(self.n_ctx) == self.n_ctx - 1).expand(n, -1)
        return Batch(tokens=tokens, targets=tokens.roll(self.shift, 1), trained=last, scored=last)

    def score(self, logits, batch):
        return {"error": (logits[:, -1].argmax(-1) != batch.targets[:, -1].to(logits.device)).float()}
