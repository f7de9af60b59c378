"""`interp.train` against a bare PyTorch loop over the same HookedTransformer, on the copying task.

    python tests/benchmarks/bench_training.py

Both draw the same batches, take the same updates and run alternately in one process; what counts is the ratio. The bare
loop neither evaluates nor checks its losses; `interp.train` is timed once without and once with its usual evaluation.
Expected: 0.5 to 0.6 without evaluation and at most 0.1 more with it, in about a minute and a half.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from analyses.recipes import RECIPES
from interp.models.build import build
from interp.training.config import TrainConfig
from interp.training.loop import train
from tasks.seeding import derive_seed

STEPS, ROUNDS = 200, 5
RECIPE = RECIPES["copying"]()


def train_bare(config: TrainConfig) -> None:
    model = build(**RECIPE.model)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
    )
    device = next(model.parameters()).device
    for step in range(config.steps):
        batch = RECIPE.task.sample(config.batch_size, split="train", seed=derive_seed(config.seed, "train", step))
        logits = model(batch.tokens.to(device))
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), batch.targets[:, :-1].flatten().to(device)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def train_ours(config: TrainConfig) -> None:
    train(build(**RECIPE.model), RECIPE.task, config, progress="off")


def measure(run: Callable[[TrainConfig], None], config: TrainConfig) -> float:
    started = time.process_time()
    run(config)
    return (time.process_time() - started) / config.steps * 1e3


def main() -> None:
    plain = dataclasses.replace(RECIPE.config, steps=STEPS, eval_every=10**6, eval_sequences=1)
    evaluated = dataclasses.replace(RECIPE.config, steps=STEPS)
    kinds = {
        "bare loop": lambda: measure(train_bare, plain),
        "interp.train, no evaluation": lambda: measure(train_ours, plain),
        "interp.train, evaluation every 100 steps": lambda: measure(train_ours, evaluated),
    }
    rounds = [{name: run() for name, run in kinds.items()} for _ in range(ROUNDS)]
    for name in kinds:
        cost = statistics.median(each[name] for each in rounds)
        ratio = statistics.median(each[name] / each["bare loop"] for each in rounds)
        print(f"{name:42s} {cost:7.1f} ms of processor time a step   ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
