"""`interp.attribution_patch` against the sweep that it screens for, `interp.patch`: time, as a ratio of one run.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_attribution.py [--layers 0 11]

GPT-2 small's shape with random weights, 4 prompts of 64 tokens that differ everywhere, every head and position of `z`.
The exact sweep of all 9,216 cells takes long, so it is timed on a few layers, by default the first, a middle and the
last, and extrapolated linearly, since a patch of an earlier layer runs more of the model.
"""

import argparse
import time

import numpy as np
import torch

import interp
from interp.interventions.attribution import attribution_patch
from tasks.seeding import derive_generator

GPT2_SMALL = dict(n_layers=12, d_model=768, n_heads=12, d_vocab=50257, n_ctx=1024, d_mlp=3072, act_fn="gelu_new")
EXAMPLES, LENGTH = 4, 64


def time_it(function):
    """Seconds of wall time, and what the function gives."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", nargs="+", type=int, default=[0, 6, 11])
    parser.add_argument("--positions", nargs="+", type=int, default=list(range(LENGTH)))
    arguments = parser.parse_args()
    model = interp.build(**GPT2_SMALL)
    clean, corrupted = torch.randint(1000, 40000, (2, EXAMPLES, LENGTH), generator=derive_generator(0, "bench"))
    given = (model, clean, corrupted, interp.logit_difference(100, 200))
    attribution_patch(*given, site="z", check=0)
    estimate, screen = time_it(lambda: attribution_patch(*given, site="z", check=0))
    checked, _ = time_it(lambda: attribution_patch(*given, site="z"))
    steps, _ = time_it(lambda: attribution_patch(*given, site="z", steps=5, check=0))
    per_layer = []
    for layer in arguments.layers:
        seconds, exact = time_it(
            lambda layer=layer: interp.patch(*given, site="z", layers=[layer], positions=arguments.positions)
        )
        per_layer.append(seconds * LENGTH / len(arguments.positions))
        found = screen.mean[layer][:, arguments.positions].ravel()
        agreement = np.corrcoef(found, exact.effects.mean(axis=0).ravel())[0, 1]
        print(f"layer {layer}: exact {seconds:.1f} s, correlation with the estimates {agreement:.3f}", flush=True)
    slope, start = np.polyfit(arguments.layers, per_layer, 1) if len(per_layer) > 1 else (0.0, per_layer[0])
    whole = sum(start + slope * layer for layer in range(model.cfg.n_layers))
    print(
        f"{screen.mean.size} cells, {torch.get_num_threads()} threads: exact about {whole:.0f} s; estimates {estimate:.1f} s, "
        f"ratio {whole / estimate:.0f}; with 5 steps {steps:.1f} s, ratio {whole / steps:.0f}; "
        f"with 40 cells patched {checked:.1f} s, ratio {whole / checked:.0f}"
    )


if __name__ == "__main__":
    main()
