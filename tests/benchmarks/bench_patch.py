"""`interp.patch` against `transformer_lens.patching`: time, as ratios of one run, beside multiply-adds; and memory.

    python tests/benchmarks/bench_patch.py [--models gpt2-small-shape smollm2] [--loop-patches 10]
    python tests/benchmarks/bench_patch.py --memory

The loop runs the whole model for every patch, so all its patches cost the same: it is timed on a few, half of them
before and half after `interp.patch`, and extrapolated. Both have gradients off, the same inputs (all tokens of the
clean and the corrupted prompts differ, so that nothing can be left out) and the same metric; values must agree to 1e-5.
On a busy machine compare processor time, with OMP_NUM_THREADS=1: threads that wait for each other count as busy.

`--memory` runs each sweep in a process of its own, on Linux: the peak of resident memory, less what was resident once
the model was loaded. The loop's cache of the clean run is part of it; its patches are alike, so that a few suffice.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from transformer_lens import patching

import interp
from tasks.seeding import derive_generator

GPT2_SMALL = dict(n_layers=12, d_model=768, n_heads=12, d_vocab=50257, n_ctx=1024, d_mlp=3072, act_fn="gelu_new")
EXAMPLES, LENGTH = 4, 64
SWEEPS = {
    "layers x heads": ("z", "all", ("layer", "head"), patching.layer_head_vector_patch_setter),
    "layers x positions": ("resid_pre", "each", ("layer", "pos"), patching.layer_pos_patch_setter),
}


def now():
    """Seconds on the wall and of processor time."""
    return np.array([time.perf_counter(), time.process_time()])


def load(name):
    return interp.load(name) if name == "smollm2" else interp.build(**GPT2_SMALL)


def count_multiply_adds(model, site):
    """Of the loop and of the least that a sweep needs, in weight matrices, per example."""
    cfg = model.cfg
    kv = (cfg.n_key_value_heads or cfg.n_heads) * cfg.d_head
    queries = outputs = cfg.d_model * cfg.n_heads * cfg.d_head
    keys_values = 2 * cfg.d_model * kv
    mlp = (3 if cfg.gated_mlp else 2) * cfg.d_model * cfg.d_mlp
    block, unembed = queries + outputs + keys_values + mlp, cfg.d_model * cfg.d_vocab
    loop_patch = LENGTH * (cfg.n_layers * block + unembed)
    last = cfg.n_layers - 1

    def after(layer, n_positions):  # blocks from `layer` on; the last one at one position, but for keys and values
        if layer > last:
            return unembed
        return n_positions * ((last - layer) * block + keys_values) + block - keys_values + unembed

    if site == "z":
        own = outputs // cfg.n_heads + mlp
        ours = sum((LENGTH if layer < last else 1) * own + after(layer + 1, LENGTH) for layer in range(cfg.n_layers))
        return cfg.n_layers * cfg.n_heads * loop_patch, cfg.n_heads * ours
    ours = sum(after(layer, LENGTH - position) for layer in range(cfg.n_layers) for position in range(LENGTH))
    return cfg.n_layers * LENGTH * loop_patch, ours


def sample_tokens():
    return torch.randint(1000, 40000, (2, EXAMPLES, LENGTH), generator=derive_generator(0, "bench_patch"))


def choose_patches(model, sweep, n_loop):
    """Cells that the loop patches, spread over the sweep, by number and as the loop wants them."""
    site, _, axes, _ = SWEEPS[sweep]
    n_columns = model.cfg.n_heads if site == "z" else LENGTH
    cells = np.linspace(0, model.cfg.n_layers * n_columns - 1, n_loop).astype(int)
    return cells, pd.DataFrame({axes[0]: cells // n_columns, axes[1]: cells % n_columns})


@torch.no_grad()
def measure(model, name, n_loop):
    clean, corrupted = sample_tokens()
    metric = interp.logit_difference(100, 200)
    _, cache = model.run_with_cache(clean)
    for sweep, (site, positions, _, setter) in SWEEPS.items():
        cells, table = choose_patches(model, sweep, n_loop)

        def loop(rows, site=site, setter=setter, table=table):
            start = now()
            values = patching.generic_activation_patch(
                model,
                corrupted,
                cache,
                lambda logits: metric(logits[:, -1]).mean(),
                patch_setter=setter,
                activation_name=site,
                index_df=table.iloc[rows],
            )
            return now() - start, values.numpy()

        loop(slice(0, 1))
        interp.patch(model, clean[:, :4], corrupted[:, :4], metric, site=site, positions=positions, layers=[0])
        first, values_first = loop(slice(0, n_loop // 2))
        start = now()
        result = interp.patch(model, clean, corrupted, metric, site=site, positions=positions)
        ours = now() - start
        second, values_second = loop(slice(n_loop // 2, n_loop))
        theirs = (first + second) / n_loop * result.mean.size
        error = np.abs(result.mean.ravel()[cells] - np.concatenate([values_first, values_second])).max()
        assert error < 1e-5, error
        loop_floor, our_floor = (EXAMPLES * count / 1e12 for count in count_multiply_adds(model, site))
        print(
            f"{name:17} {sweep:19} {result.mean.size:5} patches: loop {theirs[0]:6.1f} s ({n_loop} timed), "
            f"ours {ours[0]:5.1f} s, ratio {theirs[0] / ours[0]:4.2f}, of processor time {theirs[1] / ours[1]:4.2f}; "
            f"multiply-adds {loop_floor:.2f} T and {our_floor:.2f} T, ratio {loop_floor / our_floor:4.2f}; "
            f"largest difference {error:.0e}",
            flush=True,
        )


def peak_bytes():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@torch.no_grad()
def measure_peak(name, sweep, who, n_loop):
    """Bytes that a sweep adds to the loaded model at its peak."""
    model = load(name)
    clean, corrupted = sample_tokens()
    metric = interp.logit_difference(100, 200)
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of loading
    before = peak_bytes()
    site, positions, _, setter = SWEEPS[sweep]
    if who == "ours":
        interp.patch(model, clean, corrupted, metric, site=site, positions=positions)
        return peak_bytes() - before
    _, cache = model.run_with_cache(clean)
    patching.generic_activation_patch(
        model,
        corrupted,
        cache,
        lambda logits: metric(logits[:, -1]).mean(),
        patch_setter=setter,
        activation_name=site,
        index_df=choose_patches(model, sweep, n_loop)[1],
    )
    return peak_bytes() - before


def compare_peaks(name, n_loop):
    for sweep in SWEEPS:
        added = {}
        for who in ("loop", "ours"):
            command = [sys.executable, __file__, "--peak", name, sweep, who, "--loop-patches", str(n_loop)]
            added[who] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
        more = (added["ours"] - added["loop"]) / 2**20
        print(
            f"{name:17} {sweep:19} peak above the loaded model: loop {added['loop'] / 2**20:.0f} MB, "
            f"ours {added['ours'] / 2**20:.0f} MB, {more:+.0f} MB",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["gpt2-small-shape", "smollm2"])
    parser.add_argument("--loop-patches", type=int, default=10)
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--peak", nargs=3, metavar=("MODEL", "SWEEP", "WHO"), help="bytes of one sweep, for --memory")
    arguments = parser.parse_args()
    if arguments.peak:
        print(measure_peak(*arguments.peak, arguments.loop_patches))
        return
    print(f"{EXAMPLES} x {LENGTH} tokens, {torch.get_num_threads()} threads")
    for name in arguments.models:
        if arguments.memory:
            compare_peaks(name, arguments.loop_patches)
        else:
            measure(load(name), name, arguments.loop_patches)


if __name__ == "__main__":
    main()
