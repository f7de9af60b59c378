import sys

import pytest
import torch

import interp
from interp.complexity.spectra import stable_rank
from interp.errors import InputError
from interp.solutions.representation import measure_representation
from tasks.anchor import Composite, dropped_pairs
from tests.solutions.machines import WIRINGS, build_machine, make_task
from tests.untyped import as_without_type_checks


@pytest.fixture(scope="module")
def parallel():
    return measure_representation(build_machine(WIRINGS["parallel"]), make_task(), n=120)


@pytest.fixture(scope="module")
def random():
    model = interp.build(
        n_layers=2, d_model=16, n_heads=2, d_vocab=120, n_ctx=9, d_mlp=24, act_fn="gelu",
        normalization_type="LN", device="cpu",
    )  # fmt: skip
    return model, measure_representation(model, dropped_pairs(), n=70, seed=2)


def test_the_last_state_of_an_adding_machine_is_its_sum(parallel):
    task = make_task()
    batch = task.sample_pairs(120, pairs=list(task.trained_pairs), keys="test", seed=0)
    assert parallel.states["before the unembedding"][:, 2] == pytest.approx(batch.targets[:, -1].numpy())
    assert parallel.pairs[:14].tolist() == [list(pair) for pair in task.trained_pairs]
    assert list(parallel.targets) == ["after layer 0", "after layer 1", "before the unembedding"]


def test_states_are_those_of_the_residual_stream_and_of_the_final_norm(random):
    model, found = random
    task = dropped_pairs().with_last_free()
    batch = task.sample_pairs(70, pairs=list(task.trained_pairs), keys="test", seed=2)
    _, cache = model.run_with_cache(batch.tokens)
    wanted = [cache["blocks.0.hook_resid_post"], cache["blocks.1.hook_resid_post"]]
    wanted.append(cache["ln_final.hook_normalized"])
    for found_states, states in zip(found.states.values(), wanted, strict=True):
        torch.testing.assert_close(torch.from_numpy(found_states), states[:, -1])
    assert sum(len(hook.fwd_hooks) for hook in model.hook_dict.values()) == 0


def test_equal_targets_are_more_alike_where_the_state_is_their_sum(random):
    model = build_machine(WIRINGS["parallel"])
    with torch.no_grad():  # T and what would hide it: the last token's own value, A and place
        for i in (0, 1):
            model.blocks[1].attn.W_V[0, i] *= 1e4
        model.unembed.W_U /= 1e4
    summed = measure_representation(model, make_task(), n=120).targets
    assert summed["before the unembedding"].equal == pytest.approx(1, abs=1e-3)
    assert random[1].targets["before the unembedding"].difference < 0.3


def test_an_embedding_that_holds_the_value_is_in_order(parallel, random):
    assert parallel.value_order.r2 == pytest.approx([1, 1, 1], abs=1e-6)
    assert random[1].value_order.r2.max() < 0.5


def test_with_the_key_hidden_a_machine_that_brings_the_anchors_first_has_both_orders_in_one_place():
    model = build_machine(WIRINGS["symmetric"])
    found = measure_representation(model, make_task(), n=120).mirrored["after layer 0"]
    assert found.n_labels == 5  # (3, 4) and (4, 3) are not trained
    batch = make_task().sample_pairs(10, pairs=[(1, 2), (2, 1)], keys="test", seed=0)
    _, cache = model.run_with_cache(batch.tokens)
    assert cache["blocks.0.hook_resid_post"][:, -1, 1].tolist() == [6] * 10


def test_weights_stand_beside_random_ones(random):
    model, found = random
    weights = model.blocks[0].attn.W_Q.movedim(0, 1).flatten(1)
    assert found.stable_rank["W_Q"] == pytest.approx(float(stable_rank(weights)))
    assert found.stable_rank["W_in"] == pytest.approx(float(stable_rank(model.blocks[0].mlp.W_in)))
    assert found.random_stable_rank["W_in"].shape == (20,)
    assert found.condensation.shape == (16, 16)
    frame = found.to_frame()
    assert frame.columns.tolist() == ["measure", "where", "value", "low", "high", "control", "p", "n"]
    assert frame["control"].notna().all()
    assert frame["measure"].value_counts().to_dict() == {
        "target cosine": 3,
        "nearest has the same two anchors": 3,
        "silhouette of two anchors": 3,
        "R² of the key's value": 3,
        "stable rank": 2,
        "condensed directions": 1,
    }
    assert "stable rank W_Q" in repr(found)


@pytest.mark.parametrize("method", ["pca", "tsne", "umap"])
def test_the_picture_has_a_panel_a_place(random, method):
    if method == "umap":
        pytest.importorskip("umap")
    picture = random[1].figure(method)
    assert picture.alt.startswith(
        "States of 70 sequences in the plane, after layer 0, after layer 1, before the unembed"
    )
    texts = [text.get_text() for text in picture.texts]
    assert {"after layer 0", "before the unembedding", "n = 70"} <= set(texts)
    drawn = [sum(len(line.get_xdata()) for line in axes.lines) for axes in picture.axes[1:]]
    assert drawn == [70, 70, 70]
    assert "<svg" in random[1]._repr_html_()


@pytest.mark.parametrize(
    ("task", "n", "text"),
    [
        (dropped_pairs(), 20, "n=20 sequences of 14 pairs are too few to compare; give at least 56"),
        (Composite(group_size=1), 100, "Pairs of anchors are looked at, but 'composite' has 1 anchors in a sequence"),
        (Composite(d_vocab=150), 100, "has 150 tokens and sequences of 9, but the model has d_vocab=120"),
        (Composite(held_out=[(a, b) for a in (1, 2, 3) for b in (1, 2, 3, 4)]), 100, "trains both orders of 0 pairs"),
    ],
)
def test_what_cannot_be_compared_is_refused(random, task, n, text):
    with pytest.raises(InputError, match=text):
        measure_representation(random[0], task, n=n)


def test_an_unknown_method_is_refused(random):
    with (
        as_without_type_checks(),
        pytest.raises(InputError, match="method='mds' isn't known; use 'pca', 'tsne', 'umap'"),
    ):
        random[1].figure("mds")


def test_without_its_package_umap_is_refused(random, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)  # as if it weren't installed
    with pytest.raises(InputError, match=r"pip install 'interp-toolkit\[umap\]'"):
        random[1].figure("umap")


def test_nothing_depends_on_global_state(random):
    model, found = random
    assert measure_representation(model, dropped_pairs(), n=70, seed=2).to_frame().equals(found.to_frame())
