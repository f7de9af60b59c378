import random
import re
from itertools import combinations, pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from interp.errors import InputError
from interp.figures import css_variables, to_svg
from interp.figures.tree import tree_picture, tree_text
from tasks.trees import draw_tree, left_branching, list_spans, right_branching

WORDS = ["some", "yak", "does", "sleep"]
PATH = re.compile(r'<path d="([^"]*)" style="([^"]*)"><title>([^<]*)</title>')


def read_bars(svg):
    """Of each bar its words, ends (x0, x1), height and colour."""
    bars = {}
    for shape, style, said in PATH.findall(svg):
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", shape)]
        heights = numbers[1::2]
        bar = min(heights) if heights[0] > heights[2] else max(heights)
        bars[said, bar] = (numbers[0], numbers[-2], re.search(r"--figure-(\w+)", style)[1])
    return bars


def test_every_bracket_is_a_bar_from_part_to_part():
    bars = read_bars(to_svg(tree_picture(WORDS, ((0, 1), (2, 3)))))
    assert [said for said, _ in bars] == ["some yak", "does sleep", "some yak does sleep"]
    (some, yak, _), (does, sleep, _), (left, right, _) = bars.values()
    assert some < yak < does < sleep
    assert left == pytest.approx((some + yak) / 2, abs=0.02)
    assert right == pytest.approx((does + sleep) / 2, abs=0.02)
    first, second, root = (height for _, height in bars)
    assert root < first == second


def test_what_both_trees_have_is_coloured_and_the_rest_is_grey():
    svg = to_svg(tree_picture(WORDS, ((0, 1), (2, 3)), below=(0, (1, (2, 3)))))
    bars = sorted((said, height > 90, colour) for (said, height), (_, _, colour) in read_bars(svg).items())
    assert bars == [
        ("does sleep", False, "accent"),
        ("does sleep", True, "accent"),
        ("some yak", False, "axis"),
        ("some yak does sleep", False, "accent"),
        ("some yak does sleep", True, "accent"),
        ("yak does sleep", True, "axis"),
    ]
    for text in ("found", "gold", "in both: 2 of 3 brackets"):
        assert f">{text}<" in svg


def test_it_says_what_it_shows():
    assert tree_picture(WORDS, ((0, 1), (2, 3))).alt == "Tree over the sentence: ((some yak) (does sleep))."
    assert tree_picture(WORDS, left_branching(4), below=right_branching(4)).alt == (
        "Tree over the sentence: (((some yak) does) sleep). Below it: (some (yak (does sleep))). "
        "1 of 3 brackets are in both."
    )
    tips = tree_picture(WORDS, left_branching(4), scores={(0, 2): 0.93}).tooltips["above"]
    assert tips == ["some yak: 0.930", "some yak does", "some yak does sleep"]


@pytest.mark.parametrize("n_words", [1, 2, 5, 20])
@pytest.mark.parametrize("two", [False, True])
def test_words_and_names_do_not_overlap(n_words, two):
    generator = random.Random(n_words)
    words = [generator.choice(["a", "tyrannosaurus", "doesn't", "MMWW", "high_five"]) for _ in range(n_words)]
    trees = [draw_tree(n_words, generator) for _ in range(2)]
    picture = tree_picture(words, trees[0], below=trees[1] if two else None, title="Layer 6, sentence 12")
    canvas = FigureCanvasAgg(picture).get_renderer()
    texts = [text for text in [*picture.texts, *picture.axes[0].texts] if text.get_text()]
    boxes = [text.get_window_extent(canvas) for text in texts]
    assert len(boxes) == n_words + 1 + (3 if two else 0)
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert picture.bbox.contains(box.x0, box.y0)
        assert picture.bbox.contains(box.x1, box.y1)
    width, height = picture.get_size_inches() * 72
    for lines in picture.axes[0].collections:
        for path in lines.get_paths():
            assert (path.vertices >= 1).all()
            assert (path.vertices <= (width - 1, height - 1)).all()


def test_the_tree_in_characters():
    assert tree_text(WORDS, ((0, 1), (2, 3))).split("\n") == [
        "    ┌──────────┐",
        " ┌──┴──┐    ┌──┴───┐",
        "some  yak  does  sleep",
    ]
    assert tree_text(WORDS, (0, (1, (2, 3)))).split("\n")[1:] == [
        " │     ┌───┴───┐",
        " │     │    ┌──┴───┐",
        "some  yak  does  sleep",
    ]
    assert tree_text(["alone"], 0) == "alone"


@pytest.mark.parametrize("n_words", [2, 9, 25])
def test_the_tree_in_characters_has_a_bar_for_every_bracket_and_joins_up(n_words):
    tree = draw_tree(n_words, random.Random(n_words))
    lines = tree_text(["w"] * n_words, tree).split("\n")
    drawn = "".join(lines)
    assert drawn.count("┌") == drawn.count("┐") == len(list_spans(tree)) == n_words - 1
    assert drawn.count("┴") == n_words - 2  # each bar but the root's hangs from another
    for above, below in pairwise(lines):
        for column, character in enumerate(above):
            if character in "┌┐│":
                assert below[column] in "│┴w"


def test_words_stay_on_one_line():
    assert tree_text([" a", "\n", "  "], ((0, 1), 2)).split("\n")[-1] == "a  ↵  ␣"
    assert ">↵<" in to_svg(tree_picture([" a", "\n"], (0, 1)))
    assert "&lt;b&gt;" in to_svg(tree_picture(["<b>", "$x$"], (0, 1)))


def test_the_colours_follow_the_theme():
    svg = to_svg(tree_picture(WORDS, ((0, 1), (2, 3)), below=left_branching(4)))
    used = set(re.findall(r"var\((--(?:figure|heat)-[\w-]+)", svg)) - {"--figure-font"}
    for theme in ("light", "dark"):
        assert used <= set(re.findall(r"(--[\w-]+):", css_variables(theme)))


def test_it_says_what_it_cannot_draw():
    with pytest.raises(InputError, match=r"doesn't fit its 4 words: .*leaves are \[0, 1\]"):
        tree_picture(WORDS, (0, 1))
    with pytest.raises(InputError, match=r"doesn't fit its 4 words: .*leaves are \[0, 1, 2\]"):
        tree_picture(WORDS, left_branching(4), below=left_branching(3))
    with pytest.raises(InputError, match="drawn over its words, and none was given"):
        tree_text([], 0)
