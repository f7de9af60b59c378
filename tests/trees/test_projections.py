"""Trees of a model: those of its charts, whatever the batch; scored beside an untrained model; mistakes in one sentence."""

import numpy as np
import pytest
import torch

import interp
from interp.errors import InputError
from interp.trees.charts import measure_charts
from interp.trees.project import exclude_prefixes, project_cky, project_greedy
from interp.trees.projections import project_trees
from interp.trees.scores import score_trees
from tasks.trees import left_branching

SENTENCES = [[3, 4, 5, 6, 7], [1, 2, 3], [5, 4, 3, 2, 1], [2, (7, 8), 6]]


@pytest.fixture(scope="module")
def model():
    return interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=9, n_ctx=8, seed=1, act_fn="gelu", device="cpu")


@pytest.mark.parametrize("method", ["greedy", "cky"])
def test_trees_and_scores_are_those_of_each_sentence_by_itself(model, method):
    found = project_trees(model, SENTENCES, bos=0, method=method, untrained="leave_out")
    charts = measure_charts(model, SENTENCES, bos=0)
    for i, layer in enumerate(found.layers):
        for place in range(len(SENTENCES)):
            chart = charts[layer][place][None]
            expected = project_greedy(chart) if method == "greedy" else project_cky(exclude_prefixes(chart))
            assert found.trees[layer][place] == expected[0]
            for score, values in found.scores.items():
                alone = score_trees(chart, expected, score=score, places=[place])
                assert values[i, place] == pytest.approx(alone[0], abs=1e-5)
    assert found.untrained is None
    assert found.to_frame()["untrained"].isna().all()


def test_the_untrained_floor_is_of_other_weights_and_leaves_the_model_as_it_is(model):
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    found = project_trees(model, SENTENCES, bos=0, layer="last")
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert found.layers == (1,)
    assert found.untrained is not None
    assert not np.allclose(found.untrained["closed"], found.scores["closed"])
    frame = found.to_frame().set_index("score")
    assert frame.loc["closed", "untrained"] == pytest.approx(found.untrained["closed"].mean())
    assert "of an untrained model" in repr(found)


def test_f1_is_1_against_its_own_trees_and_the_picture_says_so(model):
    found = project_trees(model, SENTENCES, bos=0, untrained="leave_out")
    assert found.f1(found.trees[0], layer=0).f1 == 1
    picture = found.figure(0, layer=1, gold=found.trees[1][0])
    assert "in both" in " ".join(text.get_text() for axes in picture.axes for text in axes.texts)
    assert found.words[3] == ("2", "7+8", "6")
    assert found.f1([left_branching(5), left_branching(3), left_branching(5), left_branching(3)]).f1 <= 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "viterbi"}, r"method='viterbi' isn't known; use 'greedy' or 'cky'"),
        ({"untrained": "yes"}, r"untrained='yes' isn't known; use 'compare' or 'leave_out'"),
        ({"layer": [7]}, "7"),
    ],
)
def test_mistakes(model, given, message):
    from tests.untyped import as_without_type_checks

    with as_without_type_checks(), pytest.raises(InputError, match=message):
        project_trees(model, SENTENCES, bos=0, **given)


def test_a_layer_or_sentence_that_was_not_measured(model):
    found = project_trees(model, SENTENCES, bos=0, layer="last", untrained="leave_out")
    with pytest.raises(InputError, match="There are no trees of layer 0: these have layers 1"):
        found.figure(0, layer=0)
    with pytest.raises(InputError, match="There is no sentence 9: these trees are of sentences 0 to 3"):
        found.figure(9)
