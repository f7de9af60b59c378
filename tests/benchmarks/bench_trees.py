"""`interp.trees.charts.measure_charts` against the definition, a masked pass for every span, in one run.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_trees.py [--sentences 20] [--repeats 3]

Random causal models with 8 heads, sentences of 12 to 20 words. The direct implementation runs the spans of a sentence as
one batch through the model itself. Beside each ratio of CPU time stands that of the multiply-adds, which is what the
arithmetic alone gives: (n + 1)(n(n + 1)/2 + 1) tokens a layer against n(n + 1)/2 of the packed rows, whose first layer
computes queries, keys and values once for each of the n words.
"""

import argparse
import time

import torch

import interp
from interp.trees.charts import measure_charts
from tasks.seeding import derive_generator

SIZES = ((2, 64), (4, 256), (4, 512))
BOS = 0


@torch.inference_mode()
def measure_directly(model, words):
    """The last layer's chart [start, end], each span's states from a masked pass of its own."""
    n = len(words)
    tokens = torch.tensor([[BOS, *words]])
    spans = [(start, end) for start in range(n) for end in range(start + 1, n + 1)]
    visible = torch.zeros(len(spans), n + 1, dtype=torch.bool)
    for row, (start, end) in enumerate(spans):
        visible[row, 1 + start : 1 + end] = True
    visible[:, 0] = True
    hooks = [
        (
            f"blocks.{layer}.attn.hook_attn_scores",
            lambda scores, hook: scores.masked_fill(~visible[:, None, None, :], -torch.inf),
        )
        for layer in range(model.cfg.n_layers)
    ]
    n_layers = model.cfg.n_layers
    full = model(tokens, stop_at_layer=n_layers)[0]
    with interp.add_hooks(model, hooks):
        own = model(tokens.expand(len(spans), -1), stop_at_layer=n_layers)  # [span pos d_model]
    inside = visible[:, :, None].clone()
    inside[:, 0] = False
    similarity = torch.cosine_similarity((own * inside).sum(1), (full * inside).sum(1), dim=-1)
    chart = torch.full((n, n + 1), torch.nan)
    for row, (start, end) in enumerate(spans):
        chart[start, end] = similarity[row]
    return chart


def count_multiply_adds(cfg, words):
    """(direct, packed) multiply-adds of weights and attention, in one sentence."""
    n = len(words)
    spans = n * (n + 1) // 2
    qkv, rest = 3 * cfg.d_model**2, cfg.d_model**2 + 2 * cfg.d_model * cfg.d_mlp
    attended = 2 * cfg.d_model
    passes = spans + 1
    direct = cfg.n_layers * passes * (n + 1) * (qkv + rest + attended * (n + 1))
    keys = sum((length + 1) * (length + 2) // 2 for length in range(1, n + 1))  # each query reads BOS and up to itself
    packed = cfg.n_layers * (spans * rest + attended * keys) + qkv * (n + (cfg.n_layers - 1) * spans)
    return direct, packed


def time_it(function):
    """CPU seconds, and what the function gives."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sentences", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    generator = derive_generator(0, "bench")
    lengths = torch.randint(12, 21, (arguments.sentences,), generator=generator).tolist()
    sentences = [torch.randint(1, 100, (length,), generator=generator).tolist() for length in lengths]
    mean_words = sum(lengths) / len(lengths)
    print(f"{len(sentences)} sentences, {mean_words:.1f} words on average, {torch.get_num_threads()} thread(s)")
    for n_layers, d_model in SIZES:
        model = interp.build(
            n_layers=n_layers, d_model=d_model, n_heads=8, d_vocab=100, n_ctx=32, act_fn="relu", device="cpu"
        )
        measure_charts(model, sentences, bos=BOS)
        measure_directly(model, sentences[0])
        direct, last, every = [], [], []
        for _ in range(arguments.repeats):
            seconds, expected = time_it(lambda model=model: [measure_directly(model, words) for words in sentences])
            direct.append(seconds)
            seconds, found = time_it(lambda model=model: measure_charts(model, sentences, bos=BOS, layers="last"))
            last.append(seconds)
            every.append(time_it(lambda model=model: measure_charts(model, sentences, bos=BOS))[0])
        error = max(
            float((one - other).nan_to_num().abs().max())
            for one, other in zip(expected, found[n_layers - 1], strict=True)
        )
        counts = [count_multiply_adds(model.cfg, words) for words in sentences]
        floor = sum(one for one, _ in counts) / sum(other for _, other in counts)
        direct, last, every = (1000 * min(seconds) / len(sentences) for seconds in (direct, last, every))
        print(
            f"{n_layers} x {d_model}: direct {direct:.1f} ms a sentence, packed {last:.2f}, ratio {direct / last:.1f} "
            f"(multiply-adds {floor:.1f}); all layers' charts {every / last:.2f} times the last one's; "
            f"largest difference {error:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
