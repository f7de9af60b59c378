import sys

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import silhouette_samples

from interp.complexity.representation import (
    cluster_score,
    order_of_values,
    project_pca,
    project_tsne,
    project_umap,
    target_cosine,
)
from interp.complexity.representation.projection import principal_components
from interp.errors import InputError
from tasks.seeding import derive_seed
from tests.untyped import as_without_type_checks


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def blobs(sizes, *, apart=6.0, seed=0):
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return apart * noise(len(sizes), 8, seed=seed + 1)[labels] + noise(len(labels), 8, seed=seed), labels


def test_a_planted_line_of_values_is_found_on_the_first_component():
    values = torch.arange(60.0)
    embedding = torch.outer(values, noise(16)) + noise(60, 16, seed=1)
    order = order_of_values(embedding, values)
    assert order.r2[0] > 0.99
    assert order.p_values.max() == pytest.approx(1 / 200)
    assert order.shuffled_r2.mean() < 0
    low, high = order.interval
    assert (low <= order.r2).all()
    assert (order.r2 <= high).all()
    frame = order.to_frame()
    assert frame.n_components.tolist() == [1, 2, 10]
    assert (frame.explained.diff().dropna() > 0).all()
    assert "n=60 tokens" in repr(order)
    assert "<table" in order._repr_html_()


def test_a_value_below_larger_components_needs_more_of_them():
    values = torch.arange(60.0)
    large = 100 * torch.nn.functional.pad(noise(60, 2, seed=3), (0, 4))
    embedding = large + torch.outer(values, torch.eye(6)[4])
    order = order_of_values(embedding, values, n_components=(1, 2, 3))
    assert order.r2[1] < 0.3
    assert order.r2[2] > 0.99


def test_no_order_is_no_better_than_shuffled():
    order = order_of_values(noise(80, 20), torch.arange(80))
    assert order.r2[0] < 0.1
    assert order.p_values.min() > 0.02
    low, high = order.interval
    assert (low[0], high[0]) != (0, 0)


def test_r2_agrees_with_scikit_learn():
    x, y = noise(31, 6), noise(31, seed=1)
    order = order_of_values(x, y, n_components=(3,), n_folds=4, n_shuffles=3, seed=5)
    coordinates, _ = principal_components(x.double().numpy(), 3)
    fold = np.random.default_rng(derive_seed(5, "folds")).permutation(31) % 4
    error, deviation, values = 0.0, 0.0, y.double().numpy()
    for one in range(4):
        train, test = fold != one, fold == one
        fit = LinearRegression().fit(coordinates[train], values[train])
        error += np.square(values[test] - fit.predict(coordinates[test])).sum()
        deviation += np.square(values[test] - values[train].mean()).sum()
    assert order.r2[0] == pytest.approx(1 - error / deviation)


def test_clusters_that_lie_apart_score_one():
    states, labels = blobs([8, 12, 10])
    score = cluster_score(states, labels)
    assert score.nearest_same.tolist() == [1.0] * 30
    frame = score.to_frame().set_index("measure")
    assert frame.loc["silhouette", "value"] > 0.5
    assert frame.loc["nearest_same", "shuffled"] == pytest.approx(0.32, abs=0.05)
    assert frame.p.tolist() == pytest.approx([1 / 200, 1 / 200])
    assert "3 labels: nearest neighbour of the same label 1.00 [1.00, 1.00]" in repr(score)
    assert "<table" in score._repr_html_()


def test_labels_without_clusters_score_like_shuffled_ones():
    frame = cluster_score(noise(60, 5), torch.arange(60) % 3).to_frame()
    assert frame.p.min() > 0.05


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_scores_agree_with_slow_versions(distance):
    states, labels = blobs([5, 1, 9, 6], apart=1.0)
    score = cluster_score(states, labels, distance=distance, n_shuffles=2)
    x = states.double().numpy()
    np.testing.assert_allclose(score.silhouette, silhouette_samples(x, labels.numpy(), metric=distance), atol=1e-9)
    for i in range(len(x)):
        if distance == "cosine":
            away = [1 - x[i] @ other / np.linalg.norm(x[i]) / np.linalg.norm(other) for other in x]
        else:
            away = [float(np.linalg.norm(x[i] - other)) for other in x]
        away[i] = np.inf
        assert score.nearest_same[i] == float(labels[int(np.argmin(away))] == labels[i])


def test_equally_near_neighbours_share():
    states = torch.tensor([[0.0], [1.0], [-1.0], [9.0]])
    score = cluster_score(states, torch.tensor([0, 0, 1, 1]), n_shuffles=1)
    assert score.nearest_same.tolist() == [0.5, 1.0, 0.0, 0.0]


def test_parallel_states_of_one_target():
    targets = torch.arange(40) % 4
    directions = torch.eye(8)[targets]
    lengths = 0.1 + torch.rand(40, 1, generator=torch.Generator().manual_seed(0))
    result = target_cosine(directions * lengths, targets)
    assert result.equal == pytest.approx(1)
    assert result.unequal == pytest.approx(0, abs=1e-12)
    assert result.interval == pytest.approx((1, 1))
    assert result.p_value == pytest.approx(1 / 200)
    assert abs(result.shuffled.mean()) < 0.05
    assert result.to_frame().n.item() == 40
    assert "equal targets 1.00, different 0.00, difference 1.00 [1.00, 1.00]" in repr(result)
    assert "<table" in result._repr_html_()


def test_cosines_agree_with_a_loop_over_pairs():
    states, targets = noise(20, 6), torch.tensor([0, 0, 1, 2, 1] * 4)
    result = target_cosine(states, targets)
    x = states.double().numpy()
    pairs = {True: [], False: []}
    for i in range(20):
        for j in range(i):
            cosine = x[i] @ x[j] / np.linalg.norm(x[i]) / np.linalg.norm(x[j])
            pairs[bool(targets[i] == targets[j])].append(cosine)
    assert result.equal == pytest.approx(np.mean(pairs[True]))
    assert result.unequal == pytest.approx(np.mean(pairs[False]))
    low, high = result.interval
    assert low < result.difference < high
    assert result.p_value > 0.05


def test_principal_components_keep_the_geometry_of_a_plane():
    plane = noise(20, 2, seed=2) @ noise(2, 7, seed=3) + 5
    projected = project_pca(plane)
    assert projected.explained.sum() == pytest.approx(1)
    ours = torch.cdist(*[torch.from_numpy(projected.coordinates)] * 2)
    torch.testing.assert_close(ours, torch.cdist(plane.double(), plane.double()), rtol=1e-4, atol=1e-4)
    again = project_pca(-plane)
    np.testing.assert_allclose(np.abs(again.coordinates), np.abs(projected.coordinates), atol=1e-5)
    assert "n=20 states" in repr(projected)


def test_tsne_keeps_clusters_and_the_global_generator():
    states, labels = blobs([15, 15])
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    plane = project_tsne(states, perplexity=5)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    np.testing.assert_array_equal(plane, project_tsne(states, perplexity=5))
    assert cluster_score(torch.from_numpy(plane), labels, n_shuffles=1).nearest_same.mean() == 1


def test_umap_keeps_clusters_and_the_global_generator():
    pytest.importorskip("umap")
    states, labels = blobs([25, 25])
    np.random.seed(1)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    plane = project_umap(states, n_neighbors=8)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    np.testing.assert_array_equal(plane, project_umap(states, n_neighbors=8))
    assert not np.array_equal(plane, project_umap(states, n_neighbors=8, seed=1))
    assert cluster_score(torch.from_numpy(plane), labels, n_shuffles=1).nearest_same.mean() == 1


def test_umap_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)  # as if it weren't installed
    with pytest.raises(InputError, match=r"needs the package umap-learn.*: pip install 'interp-toolkit\[umap\]'"):
        project_umap(noise(20, 4))


def test_errors_say_what_to_do():
    with pytest.raises(
        InputError, match=r"20 tokens of width 4 in n_folds=5 folds can't fit n_components=\(1, 2, 10\)"
    ):
        order_of_values(noise(20, 4), torch.arange(20))
    with pytest.raises(InputError, match="20 tokens and 20 values with 1 distinct ones"):
        order_of_values(noise(20, 4), torch.zeros(20))
    with pytest.raises(InputError, match="n_shuffles=0 leaves no control"):
        cluster_score(noise(4, 2), torch.tensor([0, 0, 1, 1]), n_shuffles=0)
    with pytest.raises(InputError, match="4 labels with 1 different ones were given for 4 states"):
        target_cosine(noise(4, 2), torch.zeros(4, dtype=torch.long))
    with pytest.raises(InputError, match="State 2 is zero and has no direction"):
        target_cosine(noise(4, 2) * torch.tensor([1.0, 1.0, 0.0, 1.0])[:, None], torch.tensor([0, 0, 1, 1]))
    with pytest.raises(InputError, match="NaN or an infinity"):
        project_pca(torch.full((3, 2), torch.nan))
    with pytest.raises(InputError, match="n_components=3 was asked of 5 states of width 2; give 1 to 2"):
        project_pca(noise(5, 2), n_components=3)
    with pytest.raises(InputError, match="perplexity=12 was asked of 5 states"):
        project_tsne(noise(5, 2))
    with pytest.raises(InputError, match="n_neighbors=15 was asked of 15 states; give at least 2 and fewer than"):
        project_umap(noise(15, 2))
    with as_without_type_checks(), pytest.raises(InputError, match="distance='far' isn't known"):
        cluster_score(noise(4, 2), torch.tensor([0, 0, 1, 1]), distance="far")
