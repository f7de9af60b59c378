"""`score_heads` against caching every activation and reducing afterwards: time and peak memory, as ratios of one run.

    python tests/benchmarks/bench_score_heads.py [--models smollm2 gpt2-small-shape] [--sequences 50]

Each variant runs in a process of its own (peak memory of a process never falls), measures twice after a warm-up and
keeps the faster. Both compute the same scores from the same tokens in one batch, which is checked.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import interp
from interp.heads.definitions import Geometry, score_pattern
from interp.models.tokens import usable_vocabulary
from tasks.copying import repeated_tokens
from tasks.seeding import derive_generator

SEGMENT = 25
GPT2_SMALL = dict(n_layers=12, d_model=768, n_heads=12, d_vocab=50257, n_ctx=1024, d_mlp=3072, act_fn="gelu_new")


def load(name):
    return interp.load(name) if name == "smollm2" else interp.build(**GPT2_SMALL)


def ours(model, n):
    scores = interp.score_heads(model, n_sequences=n, segment=SEGMENT, bos="none", batch_size=n)
    return scores.mean("induction")


def cached(model, n):
    tokens = repeated_tokens(
        n=n,
        segment=SEGMENT,
        copies=2,
        vocabulary=usable_vocabulary(model),
        bos=None,
        generator=derive_generator(0, "score_heads", "repeated"),
    )
    geometry = Geometry(offset=0, segment=SEGMENT, copies=2)
    with torch.inference_mode():
        _, cache = model.run_with_cache(tokens)
        rows = [score_pattern(cache["pattern", layer], geometry) for layer in range(model.cfg.n_layers)]
    return torch.stack([row["induction/raw"].mean(0) for row in rows]).numpy()


def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def child(name, variant, n):
    model = load(name)
    run = {"ours": ours, "cached": cached}[variant]
    run(model, 2)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, after loading
    before, seconds = peak_bytes(), []
    for _ in range(2):
        start = time.perf_counter()
        induction = run(model, n)
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": min(seconds), "bytes": peak_bytes() - before, "induction": induction.tolist()}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["smollm2", "gpt2-small-shape"])
    parser.add_argument("--sequences", type=int, default=50)
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child, arguments.sequences)
        return
    print(f"{arguments.sequences} sequences of {2 * SEGMENT} tokens, {torch.get_num_threads()} threads")
    print(f"{'model':18} {'variant':22} {'seconds':>8} {'MB above the model':>20}")
    for name in arguments.models:
        found = {}
        for variant in ("cached", "ours"):
            command = [sys.executable, __file__, "--child", name, variant, "--sequences", str(arguments.sequences)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[variant] = json.loads(output.splitlines()[-1])
            label = {"cached": "run_with_cache, reduce", "ours": "score_heads"}[variant]
            print(f"{name:18} {label:22} {found[variant]['seconds']:8.1f} {found[variant]['bytes'] / 1e6:20.0f}")
        np.testing.assert_allclose(found["ours"]["induction"], found["cached"]["induction"], atol=1e-5)
        time_ratio = found["cached"]["seconds"] / found["ours"]["seconds"]
        memory_ratio = found["cached"]["bytes"] / found["ours"]["bytes"]
        print(f"{name:18} ratio: {time_ratio:.2f}x the time, {memory_ratio:.1f}x the memory; scores equal to 1e-5")


if __name__ == "__main__":
    main()
