"""`interp.train` against bare PyTorch loops, and many models at once against one after another.

    python tests/benchmarks/bench_training.py copying    # the copying recipe, against a bare loop
    python tests/benchmarks/bench_training.py last       # one trained position, against two bare loops
    python tests/benchmarks/bench_training.py many       # 8 and 32 models, stacked against separate

The variants of one comparison draw the same batches, take the same updates and run alternately in one process; what
counts is the ratio. Bare loops neither evaluate nor check their losses. Processor time, so set OMP_NUM_THREADS.
Expected on one thread: copying 0.5 to 0.6 without evaluation and at most 0.1 more with it; last 0.5, beside 0.75 of the
plain implementation; many 0.7 at a batch of 8, 0.85 at 32, and above 1 at 256, where "auto" does not stack.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from analyses.recipes import RECIPES
from interp.models.build import build
from interp.training.config import TrainConfig
from interp.training.loop import train
from interp.training.many import train_many
from tasks.seeding import derive_seed
from tests.training.last_position import LastPosition

SMALL: dict[str, Any] = {"n_layers": 2, "d_model": 64, "n_heads": 1, "d_mlp": 256, "d_vocab": 120, "n_ctx": 9}
SMALL |= {"act_fn": "gelu", "gamma": 0.8}
LAST = LastPosition(d_vocab=120, n_ctx=9)
NO_EVALUATION: dict[str, Any] = {"eval_every": 10**6, "eval_sequences": 1}


class Plain(nn.Module):
    """`SMALL` as one writes it without hooks: PyTorch's own linear maps, norms and attention, every position."""

    def __init__(self) -> None:
        super().__init__()
        d, mlp = SMALL["d_model"], SMALL["d_mlp"]
        self.tokens, self.positions = nn.Embedding(SMALL["d_vocab"], d), nn.Embedding(SMALL["n_ctx"], d)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm_1": nn.LayerNorm(d),
                    "qkv": nn.Linear(d, 3 * d),
                    "out": nn.Linear(d, d),
                    "norm_2": nn.LayerNorm(d),
                    "mlp": nn.Sequential(nn.Linear(d, mlp), nn.GELU(), nn.Linear(mlp, d)),
                }
            )
            for _ in range(SMALL["n_layers"])
        )
        self.norm, self.unembed = nn.LayerNorm(d), nn.Linear(d, SMALL["d_vocab"])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            q, k, v = block["qkv"](block["norm_1"](x)).chunk(3, dim=-1)  # type: ignore[index]
            x = x + block["out"](F.scaled_dot_product_attention(q, k, v, is_causal=True))  # type: ignore[index]
            x = x + block["mlp"](block["norm_2"](x))  # type: ignore[index]
        return self.unembed(self.norm(x))


def train_bare(model: nn.Module, task: Any, config: TrainConfig) -> None:
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
    )
    device = next(model.parameters()).device
    for step in range(config.steps):
        batch = task.sample(config.batch_size, split="train", seed=derive_seed(config.seed, "train", step))
        logits = model(batch.tokens.to(device))
        targets = batch.targets.masked_fill(~batch.trained, -100).to(device)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        if config.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()


def compare(kinds: Mapping[str, Callable[[], object]], *, steps: int, rounds: int) -> None:
    """Print the processor time a step of each kind and its ratio to the first, medians over rounds."""
    measured: list[dict[str, float]] = []
    for _ in range(rounds):
        measured.append({})
        for name, run in kinds.items():
            started = time.process_time()
            run()
            measured[-1][name] = (time.process_time() - started) / steps * 1e3
    first = next(iter(kinds))
    for name in kinds:
        cost = statistics.median(each[name] for each in measured)
        ratio = statistics.median(each[name] / each[first] for each in measured)
        print(f"{name:48s} {cost:7.1f} ms of processor time a step   ratio {ratio:.2f}", flush=True)


def copying(steps: int = 200, rounds: int = 5) -> None:
    recipe = RECIPES["copying"]()
    evaluated = dataclasses.replace(recipe.config, steps=steps)
    plain = dataclasses.replace(evaluated, **NO_EVALUATION)
    kinds = {
        "bare loop": lambda: train_bare(build(**recipe.model), recipe.task, plain),
        "interp.train, no evaluation": lambda: train(build(**recipe.model), recipe.task, plain, progress="off"),
        "interp.train, evaluation every 100 steps": lambda: train(
            build(**recipe.model), recipe.task, evaluated, progress="off"
        ),
    }
    compare(kinds, steps=steps, rounds=rounds)


def last(steps: int = 50, rounds: int = 5) -> None:
    config = TrainConfig(steps=steps, batch_size=256, clip_norm=1.0, **NO_EVALUATION)
    kinds = {
        "bare loop, HookedTransformer": lambda: train_bare(build(**SMALL), LAST, config),
        "bare loop, scaled dot product, every position": lambda: train_bare(Plain(), LAST, config),
        "interp.train": lambda: train(build(**SMALL), LAST, config, progress="off"),
    }
    compare(kinds, steps=steps, rounds=rounds)


def many(rounds: int = 3) -> None:
    for n_models in (8, 32):
        for batch_size in (8, 32, 256):
            steps = max(4, 2048 // (n_models * batch_size))
            config = TrainConfig(steps=steps, batch_size=batch_size, clip_norm=1.0, **NO_EVALUATION)
            print(f"{n_models} models, batch {batch_size}: of each model", flush=True)
            kinds = {
                engine: lambda engine=engine, config=config, n_models=n_models: train_many(
                    [build(**SMALL, seed=seed) for seed in range(n_models)],
                    [LAST] * n_models,
                    [config] * n_models,
                    engine=engine,
                    progress="off",
                )
                for engine in ("separate", "stacked")
            }
            compare(kinds, steps=steps * n_models, rounds=rounds)


PARTS: Mapping[str, Callable[[], None]] = {"copying": copying, "last": last, "many": many}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
