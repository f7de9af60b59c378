"""`interp.train` against bare PyTorch loops, and many models at once against one after another.

    python tests/benchmarks/bench_training.py copying    # the copying recipe, against a bare loop
    python tests/benchmarks/bench_training.py last       # one trained position, against two bare loops
    python tests/benchmarks/bench_training.py many       # 8 and 32 models, stacked against separate
    python tests/benchmarks/bench_training.py language   # lines of other lengths: padded, of one length, packed
    python tests/benchmarks/bench_training.py seeds      # five seeds of that, stacked against separate

The variants of one comparison draw the same batches, take the same updates and run alternately in one process; what
counts is the ratio. Bare loops neither evaluate nor check their losses. Processor time, so set OMP_NUM_THREADS.
Expected on one thread: copying 0.5 to 0.6 without evaluation and at most 0.1 more with it; last 0.5, beside 0.75 of the
plain implementation; many 0.5 to 0.8 at batches of 8 and 32, and above 1 at 256, where "auto" does not stack; language 0.5
padded and 0.4 of one length, where packed rows lie between; seeds above 1.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from analyses.recipes import RECIPES
from interp.models.build import build
from interp.training.config import TrainConfig
from interp.training.flat import FlatParameters
from interp.training.loop import train
from interp.training.many import train_many
from interp.training.optimise import make_optimizer, update
from interp.training.stacked import Stack
from tasks.grammar import QuestionFormation
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


def compare(
    kinds: Mapping[str, Callable[[], object]], *, steps: int, rounds: int, words: Mapping[str, float] | None = None
) -> None:
    """Print the processor time a step of each kind and its ratio to the first, medians over rounds.

    With the words that a step of each kind trains, these a second as well.
    """
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
        rate = f"   {words[name] / cost * 1e3:6.0f} words a second" if words else ""
        print(f"{name:48s} {cost:7.1f} ms of processor time a step   ratio {ratio:.2f}{rate}", flush=True)


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


def train_packed(model: Any, task: Any, config: TrainConfig, *, width: int = 72) -> None:
    """The fast pass over rows of several lines each, positions beginning anew, no line seeing another."""
    parameters = FlatParameters(model)
    stack, optimizer = Stack([parameters]), make_optimizer(parameters, config)
    W_pos = stack.weights["pos_embed.W_pos"]
    for step in range(config.steps):
        batch = task.sample(config.batch_size, split="train", seed=derive_seed(config.seed, "train", step))
        rows: list[list[torch.Tensor]] = []
        lines = [line[: int(n) + 1] for line, n in zip(batch.tokens, batch.trained.sum(1), strict=True)]
        for line in sorted(lines, key=len, reverse=True):  # into the first row with room
            for row in rows:
                if sum(map(len, row)) + len(line) <= width:
                    row.append(line)
                    break
            else:
                rows.append([line])
        pad = nn.utils.rnn.pad_sequence
        tokens = pad([torch.cat(row) for row in rows], batch_first=True)
        position = pad([torch.cat([torch.arange(len(line)) for line in row]) for row in rows], batch_first=True)
        line = (position == 0).cumsum(1)
        legal = (line[:, None, :, None] == line[:, None, None, :]) & torch.ones(2 * tokens.shape[1:]).tril().bool()
        x = F.embedding(tokens, stack.weights["embed.W_E"]) + W_pos[position]
        for layer, own in zip(model.blocks, stack.layers, strict=True):
            W = own["attn.W_QKV"].permute(2, 0, 1, 3).flatten(1)
            qkv = F.linear(F.layer_norm(x, x.shape[-1:], own["ln1.w"], own["ln1.b"]), W.T, own["attn.b_QKV"].flatten())
            q, k, v = qkv.unflatten(-1, (3, -1, model.cfg.d_head)).permute(2, 0, 3, 1, 4)
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=legal).transpose(1, 2).flatten(2)
            x = x + F.linear(z, own["attn.W_O"].flatten(0, 1).T, own["attn.b_O"])
            x = x + layer.mlp(F.layer_norm(x, x.shape[-1:], own["ln2.w"], own["ln2.b"]))
        x = F.layer_norm(x, x.shape[-1:], stack.weights["ln_final.w"], stack.weights["ln_final.b"])
        logits = F.linear(x, stack.weights["unembed.W_U"].T, stack.weights["unembed.b_U"])[:, :-1]
        trained = (position[:, 1:] > 0).flatten()  # the word behind is of the same line
        targets = tokens[:, 1:].flatten().masked_fill(~trained, -100)
        parameters.zero_grad()
        F.cross_entropy(logits.flatten(0, 1), targets).backward()
        update(optimizer, config, step=step)


def _language_model(task: Any, seed: int = 0) -> Any:
    shape = {"n_layers": 6, "d_model": 64, "n_heads": 4, "d_mlp": 256, "act_fn": "relu", "normalization_type": "LN"}
    return build(**shape, d_vocab=task.d_vocab, n_ctx=task.n_ctx, seed=seed, device="cpu")


def language(steps: int = 60, rounds: int = 3) -> None:
    padded, even = (QuestionFormation(train=50_000, batches=batches) for batches in ("mixed", "one_length"))
    config = TrainConfig(steps=steps, batch_size=16, clip_norm=1.0, **NO_EVALUATION)
    large = dataclasses.replace(config, batch_size=64, steps=steps // 4)
    trainings: dict[str, tuple[Callable[..., object], Any, TrainConfig]] = {
        "bare loop, padded": (train_bare, padded, config),
        "bare loop, one length": (train_bare, even, config),
        "interp.train, padded": (partial(train, progress="off"), padded, config),
        "interp.train, one length": (partial(train, progress="off"), even, config),
        "its pass, lines packed into rows": (train_packed, padded, config),
        "interp.train, one length, batches of 64, a quarter": (partial(train, progress="off"), even, large),
    }
    words = {
        name: statistics.mean(
            float(task.sample(own.batch_size, split="train", seed=derive_seed(0, "train", step)).trained.sum())
            for step in range(own.steps)
        )
        * own.steps
        / steps
        for name, (_, task, own) in trainings.items()
    }
    kinds = {
        name: lambda loop=loop, task=task, own=own: loop(_language_model(task), task, own)
        for name, (loop, task, own) in trainings.items()
    }
    compare(kinds, steps=steps, rounds=rounds, words=words)


def seeds(steps: int = 20, rounds: int = 3) -> None:
    for batches in ("one_length", "mixed"):
        task = QuestionFormation(train=50_000, batches=batches)
        configs = [
            TrainConfig(steps=steps, batch_size=16, clip_norm=1.0, seed=seed, **NO_EVALUATION) for seed in range(5)
        ]
        print(f"5 seeds, batches {batches!r}: of each model", flush=True)
        kinds = {
            engine: lambda engine=engine, task=task, configs=configs: train_many(
                [_language_model(task, seed) for seed in range(5)], [task] * 5, configs, engine=engine, progress="off"
            )
            for engine in ("separate", "stacked")
        }
        compare(kinds, steps=5 * steps, rounds=rounds)


PARTS: Mapping[str, Callable[[], None]] = {
    "copying": copying,
    "last": last,
    "many": many,
    "language": language,
    "seeds": seeds,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
