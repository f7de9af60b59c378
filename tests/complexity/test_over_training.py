import pytest

import interp
from interp.complexity.measure import measure_complexity
from interp.complexity.over_training import measure_over_training
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


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(
        InputError, match=r"is not the folder of a training run; give the one that `interp\.train` wrote"
    ):
        measure_over_training(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="has no checkpoint yet; train it first"):
        measure_over_training(tmp_path)
