"""`interp.find_bridge` against the dense way: time and memory for 10 heads of a 7B model's shape, in one run.

    python tests/benchmarks/bench_bridge.py [--d-model 4096 --d-head 128 --heads 10]

The dense way multiplies out every W_QK [d_model, d_model], stacks them, and takes the eigenvectors of the stack's Gram matrix, in
float64 as ours: plain, and what the published code does, less its other steps. Both begin with the same factors in memory, random
ones whose strength falls from direction to direction as trained ones' does. The subspaces must agree to a smallest cosine above
1 - 1e-5. Memory is the peak of resident memory less what was resident before, each in a process of its own, on Linux. On a
busy machine compare processor time, with OMP_NUM_THREADS=1.
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

import interp
from interp.bridge.find import fit_bridge
from interp.circuits.factors import LayerFactors
from interp.models.provenance import get_provenance
from tasks.seeding import derive_generator

NO_MODEL = get_provenance(interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True))


def now():
    """Seconds on the wall and of processor time."""
    return np.array([time.perf_counter(), time.process_time()])


def make_factors(d_model, d_head, n_heads):
    """One head a layer; only these are kept, since a layer's other heads play no part."""
    strengths = torch.arange(1, d_head + 1).float() ** -0.5
    factors = {}
    for layer in range(n_heads):
        generator = derive_generator(0, "bench_bridge", layer)
        weights = [torch.randn(1, d_model, d_head, generator=generator) * d_model**-0.5 for _ in range(2)]
        unused, none = torch.zeros(1, 1, d_head).expand(1, d_model, d_head), torch.zeros(1, d_head)
        factors[layer] = LayerFactors(
            layer=layer,
            W_Q=weights[0] * strengths,
            W_K=weights[1],
            W_V=unused,
            W_O=unused.transpose(1, 2),
            b_Q=none,
            b_K=none,
            b_V=none,
            b_O=torch.zeros(d_model),
            scale=d_head**0.5,
            rotary=None,
        )
    return factors


def find_ours(factors):
    heads = [(layer, 0) for layer in factors]
    return fit_bridge(factors, heads, distance="none", fold="norms", provenance=NO_MODEL).basis


def find_densely(factors):
    stack = torch.cat([layer.W_Q[0].double() @ layer.W_K[0].double().T for layer in factors.values()])
    _, vectors = torch.linalg.eigh(stack.T @ stack)
    return vectors.flip(1)


def peak_bytes():
    """Of this process's own memory: `ru_maxrss` would begin with that of the process which started it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])


def measure_peak(arguments):
    """Bytes that one way adds to the factors at its peak."""
    factors = make_factors(arguments.d_model, arguments.d_head, arguments.heads)
    find_ours(make_factors(256, 16, 2))  # what the libraries take on first use
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    (find_ours if arguments.peak == "ours" else find_densely)(factors)
    return peak_bytes() - before


def compare_peaks():
    added = {}
    for who in ("ours", "dense"):
        command = [sys.executable, __file__, *sys.argv[1:], "--peak", who]
        added[who] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])
    print(
        f"peak above the factors: dense {added['dense'] / 2**20:.0f} MB, ours {added['ours'] / 2**20:.0f} MB",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--d-model", type=int, default=4096)
    parser.add_argument("--d-head", type=int, default=128)
    parser.add_argument("--heads", type=int, default=10)
    parser.add_argument("--rank", type=int, default=100, help="how many directions must agree")
    parser.add_argument("--peak", choices=("ours", "dense"), help="bytes of one way, in a process of its own")
    arguments = parser.parse_args()
    if arguments.peak:
        print(measure_peak(arguments))
        return
    factors = make_factors(arguments.d_model, arguments.d_head, arguments.heads)
    print(f"{arguments.heads} heads, {arguments.d_model} x {arguments.d_head}, {torch.get_num_threads()} threads")
    find_ours(make_factors(256, 16, 2))
    start = now()
    ours = find_ours(factors)
    middle = now()
    dense = find_densely(factors)
    theirs, taken = now() - middle, middle - start
    cosine = torch.linalg.svdvals(ours[:, : arguments.rank].T @ dense[:, : arguments.rank]).min()
    assert cosine > 1 - 1e-5, cosine
    rows = arguments.heads * arguments.d_head
    dense_floor = rows * arguments.d_model**2 * (1 + arguments.d_model / arguments.d_head) + 3 * arguments.d_model**3
    our_floor = arguments.d_model * rows * (4 * rows + 2 * arguments.d_head) + 10 * rows**3
    print(
        f"dense {theirs[0]:.1f} s, of processor time {theirs[1]:.1f} s; ours {taken[0]:.1f} s, {taken[1]:.1f} s; ratio "
        f"{theirs[0] / taken[0]:.1f}, of processor time {theirs[1] / taken[1]:.1f}; multiply-adds "
        f"{dense_floor / 1e12:.2f} T and {our_floor / 1e12:.3f} T, ratio {dense_floor / our_floor:.0f}; smallest cosine "
        f"at rank {arguments.rank} 1 - {1 - cosine:.0e}",
        flush=True,
    )
    del ours, dense
    compare_peaks()


if __name__ == "__main__":
    main()
