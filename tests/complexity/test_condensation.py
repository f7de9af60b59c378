import numpy as np
import pytest
import torch

from interp.complexity.condensation import condense, cosine_matrix, group_directions, random_matrix
from interp.errors import InputError
from tests.untyped import as_without_type_checks


def planted(sizes, *, d_in=40, noise=0.05, seed=0):
    """Columns in groups of given sizes around orthogonal directions, shuffled; returns the matrix and each one's group."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(d_in, d_in, generator=generator))[0][:, : len(sizes)]
    of = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    of = of[torch.randperm(len(of), generator=generator)]
    lengths = 0.1 + 3 * torch.rand(len(of), generator=generator)
    return (directions[:, of] + noise * torch.randn(d_in, len(of), generator=generator)) * lengths, of


def test_planted_groups_are_found_largest_first():
    matrix, of = planted([7, 4, 12, 1])
    result = condense(matrix)
    assert [len(group) for group in result.groups] == [12, 7, 4, 1]
    for group in result.groups:
        assert len({int(of[neuron]) for neuron in group}) == 1
    assert result.n_directions == 4
    assert result.share_in_largest() == pytest.approx(12 / 24)
    assert result.share_in_largest(2) == pytest.approx(19 / 24)
    assert result.p_value == pytest.approx(1 / 21)


def test_neurons_are_columns():
    """Rows that are all alike in direction leave the columns as they are."""
    matrix = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    assert condense(matrix, n_controls=1).groups == ((0, 2), (1,))
    assert condense(matrix.T.contiguous(), n_controls=1).groups == ((0,), (1,))


def test_the_order_shows_blocks():
    matrix, of = planted([5, 9, 6])
    result = condense(matrix)
    assert sorted(result.order) == list(range(20))
    sorted_groups = of[list(result.order)]
    assert int((sorted_groups[1:] != sorted_groups[:-1]).sum()) == 2
    order = list(result.order)
    blocks = result.cosines[np.ix_(order, order)]
    assert blocks[:9, :9].min() > 0.7
    assert np.abs(blocks[:9, 9:]).max() < 0.5
    assert (np.diff(blocks[0, :9]) <= 1e-12).all(), "by falling cosine with the leader"


def test_neither_order_nor_length_of_neurons_counts():
    matrix, _ = planted([6, 3, 2])
    shuffled = torch.randperm(11, generator=torch.Generator().manual_seed(3))
    moved = condense(matrix[:, shuffled] * torch.linspace(1e-3, 1e3, 11))
    first = {frozenset(group) for group in condense(matrix).groups}
    assert {frozenset(int(shuffled[neuron]) for neuron in group) for group in moved.groups} == first


def test_opposite_weights_are_one_direction_only_if_asked():
    matrix = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
    assert condense(matrix, n_controls=1).groups == ((0,), (1,), (2,))
    assert condense(matrix, sign="absolute", n_controls=1).groups == ((0, 1), (2,))


def test_a_neuron_without_weights_is_in_no_group():
    matrix = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]])
    result = condense(matrix, n_controls=2)
    assert (result.groups, result.silent, result.order) == (((0, 2),), (1,), (0, 2, 1))
    everything = condense(torch.zeros(3, 4), n_controls=2)
    assert (everything.n_directions, everything.silent) == (0, (0, 1, 2, 3))
    assert "0 directions among 4 neurons" in repr(everything)


def slow_groups(matrix, threshold):
    """The definition, neuron by neuron."""
    columns = [column / np.linalg.norm(column) for column in matrix.double().numpy().T]
    left, groups = list(range(len(columns))), []
    while left:
        taken = {i: [j for j in left if columns[i] @ columns[j] > threshold] for i in left}
        leader = max(left, key=lambda i: (len(taken[i]), -i))
        others = sorted((j for j in taken[leader] if j != leader), key=lambda j: -(columns[leader] @ columns[j]))
        groups.append((leader, *others))
        left = [i for i in left if i not in taken[leader]]
    return tuple(groups)


@pytest.mark.parametrize("threshold", [0.3, 0.7])
@pytest.mark.parametrize("d_in", [2, 3, 6])
def test_groups_agree_with_the_definition(threshold, d_in):
    matrix = torch.randn(d_in, 30, generator=torch.Generator().manual_seed(d_in))
    groups = group_directions(cosine_matrix(matrix), threshold=threshold)
    assert groups == slow_groups(matrix, threshold)
    assert sorted(map(len, groups), reverse=True) == [len(group) for group in groups]


def test_the_control_is_a_random_matrix_of_the_shape():
    """In two dimensions random neurons are alike, in forty they aren't."""
    narrow = condense(torch.randn(2, 40, generator=torch.Generator().manual_seed(0)))
    assert narrow.n_directions < 10
    assert narrow.p_value > 0.05
    wide = condense(planted([20, 20])[0])
    assert wide.control_directions.min() > 35
    frame = wide.to_frame().set_index("measure")
    assert frame.loc["n_directions", "value"] == 2
    assert frame.loc["n_directions", "control_low"] > 35
    assert frame.loc["share_in_largest_3", "value"] == 1
    assert "2 directions among 40 neurons at cosine > 0.7" in repr(wide)
    again = condense(planted([20, 20])[0])
    assert again.control_sizes == wide.control_sizes
    assert "<svg" in wide._repr_html_()


@pytest.mark.parametrize("shape", [(50, 8), (8, 8), (3, 20)])
def test_random_matrices_have_the_cosines_of_gaussian_ones(shape):
    """Tall ones are drawn as a triangle: the mean square of a cosine is 1 / d_in all the same."""
    squares = [
        np.square(cosine_matrix(random_matrix(*shape, draw=draw, seed=0))[~np.eye(shape[1], dtype=bool)]).mean()
        for draw in range(200)
    ]
    assert np.mean(squares) == pytest.approx(1 / shape[0], rel=0.05)


@pytest.mark.parametrize("scale", [1e-30, 1e-160, 1e150])
def test_tiny_and_huge_weights_have_directions(scale):
    matrix = torch.tensor([[3.0, 6.0, 0.0], [4.0, 8.0, 1.0]], dtype=torch.float64) * scale
    assert cosine_matrix(matrix)[0] == pytest.approx([1, 1, 0.8])


def test_condense_says_what_it_cannot_do():
    matrix = torch.eye(3)
    with pytest.raises(InputError, match=r"threshold=1\.5 is no cosine"):
        condense(matrix, threshold=1.5)
    with pytest.raises(InputError, match="n_controls=0 leaves no random matrix"):
        condense(matrix, n_controls=0)
    with pytest.raises(InputError, match="NaN or an infinity"):
        condense(matrix * torch.nan)
    with pytest.raises(InputError, match=r"shape \(0, 3\)"):
        condense(torch.zeros(0, 3))
    with as_without_type_checks(), pytest.raises(InputError, match="sign='up' isn't known; use 'signed' or 'absolute'"):
        condense(matrix, sign="up")
