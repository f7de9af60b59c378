import numpy as np
import pytest
import torch

from interp.complexity.condensation import condense
from interp.errors import InputError
from interp.figures import to_svg
from interp.figures.colour import ramp
from interp.figures.condensation import condensation_map
from interp.figures.ranks import Ranks, rank_panels
from tests.untyped import as_without_type_checks


def draw(cosines, groups, **options):
    return condensation_map(cosines, np.eye(len(cosines)), groups=groups, control_groups=[1] * len(cosines), **options)


def test_blocks_are_dark_and_framed():
    cosines = np.kron(np.eye(2), np.ones((3, 3)))
    picture = draw(cosines, [3, 3], note="random: 6")
    cells = picture.axes[1].collections[0]
    assert len(cells.get_paths()) == 36
    dark = [tuple(colour) for colour in cells.get_facecolors()[:6]]
    assert len(set(dark[:3])) == len(set(dark[3:])) == 1
    svg = to_svg(picture)
    assert svg.count("--figure-outline") == 2
    assert f"--heat-32, {ramp()[32]}" in svg
    for text in (">2 directions among 6 neurons<", ">6 directions among 6 neurons<", ">random: 6<"):
        assert text in svg
    assert "framed: groups at cosine &gt; 0.7" in svg
    assert picture.alt.startswith("Cosines between 6 neurons: 2 directions, the largest of 3 neurons;")


def test_many_neurons_are_drawn_as_means_of_cells():
    cosines = np.kron(np.eye(2), np.ones((100, 100)))
    picture = draw(cosines, [100, 100])
    cells = picture.axes[1].collections[0]
    assert len(cells.get_paths()) == 64 * 64


def test_absolute_cosines_are_drawn_as_such():
    cosines = np.array([[1.0, -1.0], [-1.0, 1.0]])
    svg = to_svg(draw(cosines, [2], sign="absolute", title="A title"))
    assert ">|cosine|<" in svg
    assert ">A title<" in svg
    assert f"{ramp()[0]}" in svg, "the control's right angle"
    colours = {tuple(colour) for colour in draw(cosines, [2], sign="absolute").axes[1].collections[0].get_facecolors()}
    assert len(colours) == 1


def test_a_result_draws_itself():
    matrix = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    result = condense(matrix, n_controls=3)
    svg = to_svg(result.figure(title="Layer 0"))
    assert f">{result.n_directions} directions among 9 neurons<" in svg
    assert "in 3 draws" in svg
    assert "<svg" in to_svg(condense(torch.zeros(3, 4), n_controls=2).figure())


def test_map_says_what_it_cannot_draw():
    with pytest.raises(InputError, match=r"shapes \(2, 2\) and \(2, 2\) for groups of 3 and 2 neurons"):
        draw(np.eye(2), [2, 1])


def ranks(**changes):
    given = {"part": "W_Q", "layers": (0, 1), "values": np.array([2.0, 15.0]), "control": 16.0}
    return Ranks(**(given | {"control_interval": (15.0, 17.0)} | changes))


def test_each_part_has_a_panel_with_its_control():
    picture = rank_panels([ranks(), ranks(part="W_E", layers=(None,), values=np.array([40.0]))], label="stable rank")
    first, second = picture.axes[-2:]
    dots = next(line for line in first.get_lines() if line.get_marker() == "o")
    np.testing.assert_array_equal(dots.get_ydata(), [2.0, 15.0])
    assert first.get_ylim()[1] >= 17
    assert second.get_ylim()[1] >= 40
    assert first.get_ylim()[0] == second.get_ylim()[0] == 0
    svg = to_svg(picture)
    for text in (">W_Q<", ">W_E<", ">stable rank<", ">random matrices of the same shape<"):
        assert text in svg
    assert svg.count(">layer<") == 1, "an embedding has no layer"


@pytest.mark.parametrize("n_layers", [1, 12, 30])
def test_any_depth_fits(n_layers):
    deep = ranks(layers=tuple(range(n_layers)), values=np.linspace(1, 20, n_layers))
    picture = rank_panels([deep] * 9, label="stable rank", title="A title")
    axes = picture.axes[-1]
    low, high = axes.get_xlim()
    assert low < 0 <= n_layers - 1 < high
    assert ("1.0 to 20.0 over 30 matrices (random 16.0)" in picture.alt) == (n_layers == 30)


def test_panels_say_what_they_cannot_draw():
    with pytest.raises(InputError, match=r"sizes \[\]; it needs at least one panel"):
        rank_panels([], label="stable rank")
    with as_without_type_checks(), pytest.raises(InputError, match=r"sizes \[\(2, 1\)\]"):
        rank_panels([ranks(values=np.zeros(1))], label="stable rank")
