"""`interp.trees.charts.measure_charts` against the definition, a masked pass for every span, in one run.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_trees.py [--direction causal|bidirectional] [--sentences 20] [--repeats 3]

Random models with 8 heads, sentences of 12 to 20 words. The direct implementation runs the spans of a sentence as one batch
through the model itself. Beside each ratio of CPU time stands that of the multiply-adds, which is what the arithmetic alone
gives. Causal: (n + 1)(n(n + 1)/2 + 1) tokens a layer against n(n + 1)/2 of the packed rows, whose first layer computes
queries, keys and values once for each of the n words. Bidirectional, between two ends: (n + 2)(n(n + 1)/2 + 1) tokens against
about n(n + 1)(n + 8)/6 of the gathered spans, with the layers below the threshold once for each of the n + 2 tokens.
"""

import argparse
import time

import torch

import interp
from interp.trees.charts import measure_charts
from tasks.seeding import derive_generator

SIZES = ((2, 64), (4, 256), (4, 512))
BOS, EOS = 0, 99


@torch.inference_mode()
def measure_directly(model, words, threshold_layer):
    """The last layer's chart [start, end], each span's states from a masked pass of its own."""
    n = len(words)
    ends = [EOS] if model.cfg.attention_dir == "bidirectional" else []
    tokens = torch.tensor([[BOS, *words, *ends]])
    spans = [(start, end) for start in range(n) for end in range(start + 1, n + 1)]
    own = torch.zeros(len(spans), tokens.shape[1], dtype=torch.bool)
    for row, (start, end) in enumerate(spans):
        own[row, 1 + start : 1 + end] = True
    visible = own.clone()
    visible[:, [0, *range(n + 1, tokens.shape[1])]] = True
    hooks = [
        (
            f"blocks.{layer}.attn.hook_attn_scores",
            lambda scores, hook: scores.masked_fill(~visible[:, None, None, :], -torch.inf),
        )
        for layer in range(threshold_layer, model.cfg.n_layers)
    ]
    n_layers = model.cfg.n_layers
    full = model(tokens, stop_at_layer=n_layers)[0]
    with interp.add_hooks(model, hooks):
        masked = model(tokens.expand(len(spans), -1), stop_at_layer=n_layers)  # [span pos d_model]
    inside = own[:, :, None]
    similarity = torch.cosine_similarity((masked * inside).sum(1), (full * inside).sum(1), dim=-1)
    chart = torch.full((n, n + 1), torch.nan)
    for row, (start, end) in enumerate(spans):
        chart[start, end] = similarity[row]
    return chart


def count_multiply_adds(cfg, words, threshold_layer):
    """(direct, ours) multiply-adds of weights and attention, in one sentence."""
    n, d = len(words), cfg.d_model
    n_spans = n * (n + 1) // 2
    qkv, rest = 3 * d**2, d**2 + 2 * d * cfg.d_mlp
    width = n + (2 if cfg.attention_dir == "bidirectional" else 1)
    whole = width * (qkv + rest + 2 * d * width)  # one layer of the sentence
    direct = cfg.n_layers * (n_spans + 1) * whole
    masked_layers = cfg.n_layers - threshold_layer
    if cfg.attention_dir == "causal":
        keys = sum(
            (length + 1) * (length + 2) // 2 for length in range(1, n + 1)
        )  # each query reads BOS and up to itself
        masked = masked_layers * (n_spans * rest + 2 * d * keys) + qkv * (n + (masked_layers - 1) * n_spans)
        return direct, threshold_layer * whole + masked
    gathered = sum((n - m + 1) * (m + 2) for m in range(1, n))
    attended = sum((n - m + 1) * (m + 2) ** 2 for m in range(1, n))
    unneeded = 2 * (n_spans - 1)  # the ends, in the last layer
    masked = (
        masked_layers * (gathered * rest + 2 * d * attended) - unneeded * rest + qkv * (masked_layers - 1) * gathered
    )
    return direct, cfg.n_layers * whole + masked


def time_it(function):
    """CPU seconds, and what the function gives."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--direction", choices=("causal", "bidirectional"), default="causal")
    parser.add_argument("--sentences", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    generator = derive_generator(0, "bench")
    lengths = torch.randint(12, 21, (arguments.sentences,), generator=generator).tolist()
    sentences = [torch.randint(1, 99, (length,), generator=generator).tolist() for length in lengths]
    mean_words = sum(lengths) / len(lengths)
    print(f"{len(sentences)} sentences, {mean_words:.1f} words on average, {torch.get_num_threads()} thread(s)")
    encoder = arguments.direction == "bidirectional"
    for n_layers, d_model in SIZES:
        model = interp.build(
            n_layers=n_layers, d_model=d_model, n_heads=8, d_vocab=100, n_ctx=32, act_fn="relu", device="cpu",
            attention_dir=arguments.direction,
        )  # fmt: skip
        for threshold_layer in (0, n_layers // 2):
            how = {"bos": BOS, "eos": EOS if encoder else "auto", "threshold_layer": threshold_layer}
            measure_charts(model, sentences, **how)
            measure_directly(model, sentences[0], threshold_layer)
            direct, last, every = [], [], []
            for _ in range(arguments.repeats):
                seconds, expected = time_it(
                    lambda model=model, at=threshold_layer: [measure_directly(model, words, at) for words in sentences]
                )
                direct.append(seconds)
                seconds, found = time_it(
                    lambda model=model, how=how: measure_charts(model, sentences, layers="last", **how)
                )
                last.append(seconds)
                every.append(time_it(lambda model=model, how=how: measure_charts(model, sentences, **how))[0])
            error = max(
                float((one - other).nan_to_num().abs().max())
                for one, other in zip(expected, found[n_layers - 1], strict=True)
            )
            counts = [count_multiply_adds(model.cfg, words, threshold_layer) for words in sentences]
            floor = sum(one for one, _ in counts) / sum(other for _, other in counts)
            direct, last, every = (1000 * min(seconds) / len(sentences) for seconds in (direct, last, every))
            print(
                f"{n_layers} x {d_model}, masked from layer {threshold_layer} on: direct {direct:.1f} ms a sentence, ours "
                f"{last:.2f}, ratio {direct / last:.1f} (multiply-adds {floor:.1f}); all layers' charts {every / last:.2f} "
                f"times the last one's; largest difference {error:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
