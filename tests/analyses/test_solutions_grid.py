"""What a grid consists of, what is refused, and how it is cut into shards."""

from dataclasses import replace

import pytest

from analyses.grid_runs import take_shard
from analyses.recipes import RECIPES
from analyses.solutions.command import choose_grid
from analyses.solutions.grid import Grid, make_grid
from analyses.solutions.recipes import GRIDS
from analyses.solutions.shares import Share
from interp.errors import InputError
from tests.untyped import as_without_type_checks


def test_every_combination_is_there_once_with_every_seed():
    grid = make_grid(
        designs=("dropped", "altered"), gammas=(0.4, 0.8), weight_decays=(0.01, 1.0), depths=(2, 3), seeds=2, steps=7
    )
    cells = grid.cells
    found = {(bool(c.task.altered), c.gamma, c.weight_decay, c.n_layers, c.seed) for c in cells}
    assert len(cells) == len(found) == len({c.name for c in cells}) == len({c.key for c in cells}) == 32
    assert {c.setting.config.steps for c in cells} == {7}
    assert all(c.seed == 0 for c in cells[:16])


def test_the_seed_draws_weights_training_set_and_batches():
    cell = make_grid(gammas=(0.4,), weight_decays=(0.01,), seeds=3).cells[2]
    assert (cell.setting.model["seed"], cell.task.data_seed, cell.setting.config.seed) == (2, 2, 2)


def test_the_key_depends_on_all_that_determines_a_model_and_its_measurement_and_not_on_its_name():
    grid = make_grid(gammas=(0.4,), weight_decays=(0.01,), seeds=1)
    cell = grid.cells[0]
    renamed = replace(cell, setting=replace(cell.setting, name="other", summary="other"))
    assert renamed.key == cell.key
    others = [
        replace(cell, n=cell.n + 1),
        replace(cell, n_controls=cell.n_controls + 1),
        replace(cell, setting=replace(cell.setting, model={**cell.setting.model, "gamma": 0.41})),
        replace(cell, setting=replace(cell.setting, config=replace(cell.setting.config, weight_decay=0.02))),
        replace(cell, setting=replace(cell.setting, task=replace(cell.task, modulus=7))),
    ]
    assert len({cell.key, *(other.key for other in others)}) == 6


@pytest.mark.parametrize("n", [1, 2, 3, 7, 40])
def test_shards_together_are_the_whole_and_share_nothing(n: int):
    cells = make_grid(gammas=(0.4, 0.6, 0.8), weight_decays=(0.01, 1.0), seeds=3).cells
    shards = [take_shard(cells, f"{i + 1}/{n}") for i in range(n)]
    assert sorted(cell.name for shard in shards for cell in shard) == sorted(cell.name for cell in cells)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2"])
def test_a_shard_that_is_none(shard: str):
    with pytest.raises(InputError, match=r"give i/n with i from 1 to n, such as 1/4"):
        take_shard((), shard)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"gammas": ()}, "no cells, since no gamma was given; give at least one, such as 0.8"),
        ({"weight_decays": ()}, "no cells, since no weight decay was given"),
        ({"designs": ()}, "no cells, since no design was given"),
        ({"depths": ()}, "no cells, since no depth was given"),
        ({"gammas": (float("nan"),)}, "A gamma of nan is no finite number"),
        ({"weight_decays": (float("inf"),)}, "A weight decay of inf is no finite number"),
        ({"weight_decays": (-0.5,)}, "weight_decay must be a finite number of at least 0"),
        ({"gammas": (True,)}, "A gamma of True is no finite number"),
        ({"depths": (1,)}, "A depth of 1 has no room for a circuit of two stages"),
        ({"designs": ("droped",)}, "There is no design 'droped'; there are dropped and altered"),
        ({"seeds": 0}, "seeds must be a whole number of at least 1, not 0"),
        ({"gammas": (0.4, 0.4)}, "'gamma 0.4, decay 0.01' is in the grid twice"),
    ],
)
def test_a_grid_that_cannot_be_run_is_refused_in_one_sentence(axes: dict, message: str):
    with as_without_type_checks(), pytest.raises(InputError) as refused:
        make_grid(**{"gammas": (0.4,), "weight_decays": (0.01,), **axes})
    assert message in str(refused.value)
    assert str(refused.value).count("\n") == 0


def test_a_grid_without_settings():
    with pytest.raises(InputError, match="it has no setting; give at least one"):
        Grid(name="empty", settings=())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "No grid was named; give --recipe small, or --gamma and --weight-decay"),
        ({"gamma": "0.4"}, "No grid was named"),
        ({"gamma": "0.4;0.8", "weight_decay": "1"}, "'0.4;0.8' in --gamma is no number"),
        ({"gamma": "0.4", "weight_decay": "strong"}, "'strong' in --weight-decay is no number"),
        ({"gamma": "0.4", "weight_decay": "1", "depth": "2.5"}, "'2.5' in --depth is no whole number"),
        ({"gamma": "", "weight_decay": "1"}, "no cells, since no gamma was given"),
        ({"recipe": "smal"}, "There is no recipe 'smal'; there are small, paper_b, paper_c. Did you mean small?"),
        (
            {"recipe": "small", "gamma": "0.4", "steps": 3},
            "The recipe 'small' has its own settings; leave out --gamma and --steps, or --recipe",
        ),
    ],
)
def test_words_that_name_no_grid(words: dict, message: str):
    with pytest.raises(InputError) as refused:
        choose_grid(**words)
    assert message in str(refused.value)


def test_words_that_name_one():
    grid = choose_grid(gamma="0.4, 0.8", weight_decay="0.01,1.0", seeds=2, design="altered", depth="2,3", steps=9)
    assert len(grid.cells) == 16
    assert all(cell.task.altered for cell in grid.cells)
    assert len(choose_grid(recipe="small", seeds=1).cells) == 5


def test_the_small_recipe_has_five_seeds_of_the_settings_that_interp_train_knows():
    cells = {cell.setting.name: cell for cell in GRIDS["small"]().cells if cell.seed == 4}
    assert len(GRIDS["small"]().cells) == 25
    same = {
        "memorising": "anchor_memorising",
        "small initialisation": "anchor",
        "altered pair, large initialisation": "anchor_altered",
    }
    for name, recipe in same.items():
        known = RECIPES[recipe](seed=4)
        cell = cells[name]
        assert (cell.setting.model, cell.task, cell.setting.config) == (known.model, known.task, known.config)


def test_the_published_grids_have_the_published_sizes():
    b, c = GRIDS["paper_b"](), GRIDS["paper_c"]()
    one = b.cells[0]
    assert {cell.n_layers for cell in b.cells} == {2, 3, 4, 5, 6}
    assert one.setting.config.steps == 210 * 371
    assert one.setting.config.learning_rate * one.setting.config.initial_share == pytest.approx(1e-5)
    assert (one.task.modulus, one.setting.model["d_model"], one.setting.model["d_head"]) == (7, 400, 200)
    one = c.cells[0]
    assert {cell.weight_decay for cell in c.cells} == {0.0, 0.01, 0.1, 1.0}
    assert one.setting.config.steps == 1050 * 76
    assert one.setting.config.learning_rate * one.setting.config.final_share == pytest.approx(1e-5)
    assert (one.n_layers, one.setting.model["d_model"], one.task.n_sequences) == (10, 640, 157_500)
    assert {cell.setting.config.autocast for cell in (*b.cells, *c.cells)} == {"bfloat16"}


@pytest.mark.parametrize(
    ("found", "n", "low", "high"), [(5, 5, 0.5655, 1.0), (0, 5, 0.0, 0.4345), (3, 5, 0.2307, 0.8824), (0, 0, 0.0, 1.0)]
)
def test_wilsons_interval_against_published_values(found: int, n: int, low: float, high: float):
    assert Share(found=found, n=n).interval == pytest.approx((low, high), abs=1e-4)
