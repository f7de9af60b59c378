"""Trees of a model: those of its charts, whatever the batch; scored beside an untrained model; mistakes in one sentence."""

import numpy as np
import pytest
import torch

import interp
from interp.errors import InputError
from interp.models.initialise import Initialisation
from interp.trees.charts import measure_charts
from interp.trees.project import exclude_prefixes, project_cky, project_greedy
from interp.trees.projections import project_trees
from interp.trees.scores import score_trees
from tasks.grammar.question_formation import QuestionFormation
from tasks.seeding import derive_seed
from tasks.trees import left_branching

SENTENCES = [[3, 4, 5, 6, 7], [1, 2, 3], [5, 4, 3, 2, 1], [2, (7, 8), 6]]


SHAPE = dict(n_layers=2, d_model=16, n_heads=2, d_vocab=9, n_ctx=8, seed=1, act_fn="gelu", device="cpu")


@pytest.fixture(scope="module")
def model():
    return interp.build(**SHAPE)


@pytest.mark.parametrize("method", ["greedy", "cky"])
def test_trees_and_scores_are_those_of_each_sentence_by_itself(model, method):
    found = project_trees(model, SENTENCES, bos=0, method=method, n_untrained=0)
    charts = measure_charts(model, SENTENCES, bos=0)
    for i, layer in enumerate(found.layers):
        for place in range(len(SENTENCES)):
            chart = charts[layer][place][None]
            expected = project_greedy(chart) if method == "greedy" else project_cky(exclude_prefixes(chart))
            assert found.trees[layer][place] == expected[0]
            for score, values in found.scores.items():
                alone = score_trees(chart, expected, score=score, places=[place])
                assert values[i, place] == pytest.approx(alone[0], abs=1e-5)
    assert found.untrained == ()
    assert found.prefixes == ("kept" if method == "greedy" else "excluded")
    assert found.to_frame()["untrained"].isna().all()


@pytest.mark.parametrize(
    "options", [{}, {"norm_placement": "post", "positions": "sinusoidal", "embedding_scale": "sqrt_d_model"}]
)
def test_the_untrained_floor_is_of_other_weights_and_leaves_the_model_as_it_is(options):
    model = interp.build(**SHAPE, **options)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    found = project_trees(model, SENTENCES, bos=0, layer="last", n_untrained=3)
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert found.layers == (1,)
    means = [drawn["closed"].mean() for drawn in found.untrained]
    assert len(set(means)) == 3
    row = found.to_frame().set_index("score").loc["closed"]
    assert row["untrained"] == pytest.approx(np.mean(means))
    assert (row["untrained_low"], row["untrained_high"]) == pytest.approx((min(means), max(means)))
    assert "of 3 untrained models" in repr(found)
    one = project_trees(model, SENTENCES, bos=0, layer="last", n_untrained=1)
    assert np.array_equal(one.untrained[0]["closed"], found.untrained[0]["closed"])
    assert "of an untrained model" in repr(one)
    untrained = interp.build(**{**SHAPE, "seed": derive_seed(0, "untrained", 0)}, **options)
    floor = project_trees(untrained, SENTENCES, bos=0, layer="last", n_untrained=0)
    np.testing.assert_allclose(floor.scores["closed"], one.untrained[0]["closed"])
    small = project_trees(
        model, SENTENCES, bos=0, layer="last", n_untrained=1, initialisation=Initialisation(gamma=1.5)
    )
    assert not np.allclose(small.untrained[0]["closed"], one.untrained[0]["closed"])


def test_scores_per_span_are_divided_by_the_nodes_of_each_sentence(model):
    found = project_trees(model, SENTENCES, bos=0, n_untrained=2)
    whole, each = (found.to_frame(per=per).set_index(["layer", "score"]) for per in ("sentence", "span"))
    nodes = np.array([4, 2, 4, 2])
    assert each.loc[(1, "closed"), "value"] == pytest.approx((found.scores["closed"][1] / nodes).mean())
    assert whole.loc[(1, "closed"), "value"] == pytest.approx(found.scores["closed"][1].mean())
    floor = [(drawn["closed"][1] / nodes).mean() for drawn in found.untrained]
    assert each.loc[(1, "closed"), "untrained"] == pytest.approx(np.mean(floor))
    assert each.loc[(1, "closed"), "low"] <= each.loc[(1, "closed"), "value"] <= each.loc[(1, "closed"), "high"]


def test_sentences_of_a_task_are_projected_and_compared_with_their_labelled_gold_trees():
    task = QuestionFormation(train=40, validation=10, generalisation=10)
    sentences = task.sentences("validation")
    model = interp.build(**{**SHAPE, "d_vocab": task.d_vocab, "n_ctx": task.n_ctx})
    found = project_trees(
        model, [one.words for one in sentences], vocabulary=task.vocabulary, bos=0, layer="last", n_untrained=0
    )
    assert found.words == tuple(one.words for one in sentences)
    brackets = found.f1([one.tree for one in sentences], labels=[one.labels for one in sentences])
    assert {"with root", "without root", "NP"} <= set(brackets.groups)
    assert found.text(0).splitlines()[-1].split() == list(sentences[0].words)


def test_f1_is_1_against_its_own_trees_and_the_picture_says_so(model):
    found = project_trees(model, SENTENCES, bos=0, n_untrained=0)
    assert found.f1(found.trees[0], layer=0).f1 == 1
    picture = found.figure(0, layer=1, gold=found.trees[1][0])
    assert "in both" in " ".join(text.get_text() for axes in picture.axes for text in axes.texts)
    assert found.words[3] == ("2", "7+8", "6")
    drawn = picture._repr_html_()
    assert f"{float(found.charts[1][0][0, 5]):.3f}" in drawn  # under the pointer, the root's similarity
    assert found.text(1, layer=0).splitlines()[-1] == "1  2  3"
    assert found.f1([left_branching(5), left_branching(3), left_branching(5), left_branching(3)]).f1 <= 1


def test_a_gold_tree_of_other_words_than_the_sentence_is_named(model):
    found = project_trees(model, SENTENCES, bos=0, n_untrained=0)
    gold = [left_branching(5), left_branching(4), left_branching(5), left_branching(3)]
    with pytest.raises(InputError) as raised:
        found.f1(gold)
    assert str(raised.value) == (
        "Gold tree 1 doesn't fit its sentence: the tree's leaves are [0, 1, 2, 3]: for a sentence of 3 words give the "
        "positions 0 to 2, each once and in order."
    )
    with pytest.raises(InputError, match="1 gold trees were given for 4 sentences; give each sentence its tree"):
        found.f1(gold[:1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "viterbi"}, r"method='viterbi' isn't known; use 'greedy' or 'cky'"),
        ({"n_untrained": -1}, "n_untrained=-1 is no number of models; give 0 or more"),
        ({"layer": [7]}, "7"),
    ],
)
def test_mistakes(model, given, message):
    from tests.untyped import as_without_type_checks

    with as_without_type_checks(), pytest.raises(InputError, match=message):
        project_trees(model, SENTENCES, bos=0, **given)


def test_a_layer_or_sentence_that_was_not_measured(model):
    found = project_trees(model, SENTENCES, bos=0, layer="last", n_untrained=0)
    with pytest.raises(InputError, match="There are no trees of layer 0: these have layers 1"):
        found.figure(0, layer=0)
    with pytest.raises(InputError, match="There is no sentence 9: these trees are of sentences 0 to 3"):
        found.figure(9)
