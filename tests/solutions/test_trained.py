"""One small model, trained here at a small initialisation: it answers by composing, through the parallel circuit."""

import pytest

import interp
from interp.solutions.classify import classify_solution
from interp.solutions.representation import measure_representation
from interp.training.config import TrainConfig
from tasks.anchor import dropped_pairs


@pytest.fixture(scope="module")
def trained():
    task = dropped_pairs(n_sequences=200_000)
    model = interp.build(
        n_layers=2, d_model=64, n_heads=1, d_vocab=120, n_ctx=9, d_mlp=256, act_fn="gelu", normalization_type="LN",
        gamma=0.8, seed=0, device="cpu",
    )  # fmt: skip
    config = TrainConfig(
        steps=700, batch_size=256, learning_rate=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01,
        decayed="matrices", warmup_steps=200, schedule="cosine", final_share=0.05, clip_norm=1.0, eval_every=700,
        eval_sequences=100, seed=0,
    )  # fmt: skip
    interp.train(model, task, config, progress="off")
    return model, task


@pytest.mark.slow
def test_a_small_initialisation_reasons_through_the_parallel_circuit(trained):
    model, task = trained
    solution = classify_solution(model, task, n=200, n_controls=10)
    assert solution.behaviour.means["id"] > 0.9
    assert solution.behaviour.means["reasoning"] > 0.7
    for mechanism in solution.mechanisms.values():
        assert mechanism.label == "parallel"
        assert mechanism.is_needed("key → anchors, before the last layer")
        assert not mechanism.is_needed("anchors → last, before the last layer")
        assert mechanism.followed.mean(axis=0)[0] < 0.1
    represented = measure_representation(model, task, n=200)
    assert represented.targets["before the unembedding"].difference > 0.5
    assert represented.stable_rank["W_Q"] < represented.random_stable_rank["W_Q"].min() / 2
