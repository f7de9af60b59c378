"""Scores of pairs of heads in factored form against forming the d_model x d_model matrices: time, as ratios of one run.

    python tests/benchmarks/bench_circuits.py [--shapes gpt2 llama all] [--dense-pairs 6]

The dense implementation multiplies W_QK, W_OV and their product out and reads Z off, as the reference does. All its pairs
cost the same, so a few are timed, half of them before and half after ours, on which both must agree to 1e-6. The floor is
two matrix products with as many multiply-adds as all pairs of the two layers need, nothing else. Ratios are of wall time;
on a busy machine compare processor time, with OMP_NUM_THREADS=1.

`gpt2` and `llama` are two layers of random factors, `diagonal_scores` with all its preparation; `gpt2` also all causal pairs of
a 12-layer model, all three scores, by `score_pairs`. `all` is `score_pairs` on four and on five attention layers of
Llama-7B's shape, 6 and 10 pairs of layers: from the ten the time of all 496 (507,904 pairs of heads) is estimated, and the
peaks of resident memory above that of the loaded model, on Linux, show what grows.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

import interp
from interp.circuits.diagonal import diagonal_scores
from interp.circuits.factors import LayerFactors, read_factors
from interp.circuits.pairs import score_pairs
from tasks.seeding import derive_generator

SHAPES = {"gpt2": (12, 768, 64), "llama": (32, 4096, 128)}
"""Heads, d_model, d_head."""


def now():
    """Seconds on the wall and of processor time."""
    return np.array([time.perf_counter(), time.process_time()])


def random_layer(layer, n_heads, d_model, d_head):
    generator = derive_generator(layer, "bench_circuits")

    def draw(*shape):
        return torch.randn(shape, generator=generator) * shape[-2] ** -0.5

    reads = {name: draw(n_heads, d_model, d_head) for name in ("W_Q", "W_K", "W_V")}
    biases = {name: torch.zeros(n_heads, d_head) for name in ("b_Q", "b_K", "b_V")}
    return LayerFactors(
        layer=layer,
        W_O=draw(n_heads, d_head, d_model),
        b_O=torch.zeros(d_model),
        scale=1.0,
        rotary=None,
        **reads,
        **biases,
    )


def dense_z(writer, reader, head_w, head_r):
    """Z as it is defined, in float32 with all matrices formed."""
    W_QK = reader.W_Q[head_r] @ reader.W_K[head_r].T
    W_OV = writer.W_V[head_w] @ writer.W_O[head_w]
    product = W_QK @ W_OV.T
    return (product.diagonal().mean() - product.mean()) / product.std(correction=0)


def time_dense(writer, reader, pairs):
    start = now()
    values = [dense_z(writer, reader, head_w, head_r).item() for head_r, head_w in pairs]
    return now() - start, values


def time_floor(n_heads, d_model, d_head):
    """Two products of all heads with all heads."""
    a, b = torch.randn(2, n_heads * d_head, d_model)
    torch.mm(a, b.T)
    start = now()
    torch.mm(a, b.T)
    torch.mm(a, b.T)
    return now() - start


def show(what, ours, dense, floor, n_pairs):
    per_pair, dense_pair, floor_pair = 1e3 * ours / n_pairs, 1e3 * dense, 1e3 * floor / n_pairs
    print(
        f"{what}: dense {dense_pair[0]:.3g} ms a pair, ours {per_pair[0]:.3g} ms, ratio {dense_pair[0] / per_pair[0]:.0f}, "
        f"of processor time {dense_pair[1] / per_pair[1]:.0f}; floor {floor_pair[0]:.3g} ms, ratio "
        f"{dense_pair[0] / floor_pair[0]:.0f}, of processor time {dense_pair[1] / floor_pair[1]:.0f}",
        flush=True,
    )


def compare(name, n_dense):
    n_heads, d_model, d_head = SHAPES[name]
    writer, reader = (random_layer(layer, n_heads, d_model, d_head) for layer in (0, 1))
    pairs = [divmod(int(i), n_heads) for i in np.linspace(0, n_heads**2 - 1, n_dense)]
    time_dense(writer, reader, pairs[:1])
    diagonal_scores(writer, random_layer(2, n_heads, d_model, d_head))
    first, values = time_dense(writer, reader, pairs[: n_dense // 2])
    start = now()
    scores = diagonal_scores(writer, reader)
    ours = now() - start
    floor = time_floor(n_heads, d_model, d_head)
    second, more = time_dense(writer, reader, pairs[n_dense // 2 :])
    error = max(abs(scores[pair].item() - value) for pair, value in zip(pairs, values + more, strict=True))
    assert error < 1e-6, error
    dense = (first + second) / n_dense
    show(f"{name}, two layers of {n_heads} heads, Z", ours, dense, floor, n_heads**2)
    print(f"  largest difference from the dense Z {error:.0e}", flush=True)
    return dense, floor


def all_pairs_of_gpt2(dense, floor):
    n_heads, d_model, d_head = SHAPES["gpt2"]
    model = interp.build(
        n_layers=12, d_model=d_model, n_heads=n_heads, d_head=d_head, d_vocab=10, n_ctx=8, attn_only=True
    )
    for layer in range(12):
        read_factors(model, layer)  # the first time a layer is read it is probed
    start = now()
    scores = score_pairs(model, null="none")
    ours = now() - start
    n_layer_pairs = len(scores.layer_pairs)
    show(
        f"gpt2, all {scores.n_pairs} causal pairs, all three scores", ours, dense, floor * n_layer_pairs, scores.n_pairs
    )


def peak_bytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def stream_llama():
    n_heads, d_model, d_head = SHAPES["llama"]
    peaks = {}
    for n_layers in (4, 5):
        model = interp.build(
            n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_head=d_head, d_vocab=10, n_ctx=8, attn_only=True
        )
        for layer in range(n_layers):
            read_factors(model, layer)
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of loading
        before = peak_bytes()
        start = now()
        scores = score_pairs(model, null="none", keep=1000)
        wall, processor = now() - start
        peaks[n_layers] = (peak_bytes() - before) / 2**20
        del model
    n = len(scores.layer_pairs)
    floor = time_floor(n_heads, d_model, d_head)
    print(
        f"llama, {n} pairs of layers, all three scores: {wall / n:.3g} s each ({processor / n:.3g} of processor time), floor "
        f"{floor[0]:.3g} ({floor[1]:.3g}); all 507,904 pairs of 32 layers: {496 * wall / n / 60:.0f} min "
        f"({496 * processor / n / 60:.0f} of processor time); peak above the loaded model {peaks[4]:.0f} MB with 4 layers "
        f"and 6 pairs of layers, {peaks[5]:.0f} MB with 5 and 10",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", nargs="+", choices=["gpt2", "llama", "all"], default=["gpt2", "llama", "all"])
    parser.add_argument("--dense-pairs", type=int, default=6)
    arguments = parser.parse_args()
    print(f"float32, {torch.get_num_threads()} threads")
    for shape in arguments.shapes:
        if shape == "all":
            stream_llama()
            continue
        measured = compare(shape, arguments.dense_pairs)
        if shape == "gpt2":
            all_pairs_of_gpt2(*measured)


if __name__ == "__main__":
    with torch.no_grad():
        main()
