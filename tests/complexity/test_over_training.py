import pytest

import interp
from interp.complexity.measure import measure_complexity
from interp.complexity.norms import measure_norms
from interp.complexity.over_training import measure_over_training
from interp.complexity.sparsity import attention_sparsity
from interp.errors import InputError
from interp.training.config import TrainConfig
from interp.training.loop import train
from tasks.copying import Copying


def test_each_checkpoint_is_measured(tmp_path):
    task = Copying(d_vocab=12, n_ctx=20, min_length=6, max_length=7, ood_length=8)
    config = TrainConfig(steps=6, batch_size=4, learning_rate=1e-2, eval_every=3, eval_sequences=4, checkpoint_every=3)
    model = interp.build(n_layers=1, d_model=12, n_heads=2, d_vocab=12, n_ctx=20, attn_only=True, device="cpu")
    train(model, task, config, folder=tmp_path / "run")
    frame = measure_over_training(tmp_path / "run", parts=("W_Q", "W_U"), n_controls=2)
    steps = sorted(int(path.name.removeprefix("step_")) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert sorted(set(frame.step)) == steps
    assert len(steps) >= 2
    final = interp.load(tmp_path / "run" / "checkpoints" / f"step_{steps[-1]:08d}")
    expected = measure_complexity(final, parts=("W_Q", "W_U"), n_controls=2)
    last = frame[frame.step == steps[-1]]
    ranks = last[last.measure == "stable_rank"].set_index("name").value
    assert ranks.to_dict() == dict(zip(expected.names, expected.values["stable_rank"], strict=True))
    norms = last[last.name == "all"].set_index("measure").value
    assert norms["norm"] == expected.norms.norm
    assert norms["norm_per_layer"] == expected.norms.norm_per_layer
    assert frame[(frame.name == "all") & (frame.measure == "norm")].value.nunique() == len(steps)


def test_attention_and_norms_alone(tmp_path):
    task = Copying(d_vocab=12, n_ctx=20, min_length=6, max_length=7, ood_length=8)
    config = TrainConfig(steps=4, batch_size=4, learning_rate=1e-2, eval_every=2, eval_sequences=4, checkpoint_every=2)
    model = interp.build(n_layers=1, d_model=12, n_heads=2, d_vocab=12, n_ctx=20, attn_only=True, device="cpu")
    train(model, task, config, folder=tmp_path / "run")
    tokens = [[1, 2, 3, 4], [5, 6], [7, 8, 9, 1]]
    frame = measure_over_training(tmp_path / "run", parts=(), tokens=tokens)
    last = frame[frame.step == frame.step.max()]
    final = interp.load(tmp_path / "run" / "checkpoints" / f"step_{int(frame.step.max()):08d}")
    sparsity, norms = attention_sparsity(final, tokens), measure_norms(final)
    whole = last[last.name == "all"].set_index("measure").value.to_dict()
    assert whole == pytest.approx(
        {
            "norm": norms.norm,
            "rms": norms.rms,
            "norm_per_layer": norms.norm_per_layer,
            "attention_entropy": sparsity.entropy.mean(),
            "attention_normalised": sparsity.normalised.mean(),
            "attention_published": sparsity.published[0],
        }
    )
    heads = last[last.name != "all"]
    assert heads.name.tolist() == ["0.attention.0", "0.attention.1"] * 2
    one = heads[(heads["head"] == 1) & (heads.measure == "attention_normalised")]
    assert one.value.item() == pytest.approx(sparsity.normalised[0, 1])
    with_matrices = measure_over_training(tmp_path / "run", parts=("W_Q",), n_controls=1, tokens=tokens)
    assert {"0.W_Q", "all", "0.attention.0", "0.attention.1"} == set(with_matrices.name)


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(
        InputError, match=r"is not the folder of a training run; give the one that `interp\.train` wrote"
    ):
        measure_over_training(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="has no checkpoint yet; train it first"):
        measure_over_training(tmp_path)
