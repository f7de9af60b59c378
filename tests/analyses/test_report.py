import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pandas as pd
import pytest

from analyses import heads, induction
from analyses.analysis import Options
from analyses.registry import choose_analyses
from analyses.report_models import open_subject
from analyses.runner import Ask, claim_folder, run_asks
from interp.errors import InputError
from interp.records import COLUMNS
from tests.browser import SKIP_REASON, Browser, find_chromium


@pytest.fixture(scope="module")
def reported(machine_folder, tmp_path_factory):
    """The folder of a report on the hand-built machine."""
    from analyses.report_models import report_models

    return report_models([str(machine_folder)], out=tmp_path_factory.mktemp("runs") / "report", quick=True)


@pytest.fixture(scope="module")
def results(reported):
    return pd.read_parquet(reported / "results.parquet")


def test_every_number_has_its_row_and_its_control(results, machine_folder):
    assert tuple(results.columns) == COLUMNS
    rows = results[(results.analysis == "heads") & (results.metric == "induction") & (results.layer == 1)]
    found = rows[(rows["head"] == 0) & rows.control.isna()].iloc[0]
    assert found["value"] == pytest.approx(1.0, abs=1e-5)
    assert (found["n"], found["seed"], found["model"]) == (12, 0, str(machine_folder))
    assert found["low"] <= found["value"] <= found["high"]
    control = rows[(rows["head"] == 0) & rows.control.eq("tokens not repeated").fillna(False)].iloc[0]
    assert control["value"] < 0.2
    uniform = results[
        (results.metric == "previous_token") & results.control.eq("uniform attention").fillna(False)
    ].iloc[0]
    assert 0 < uniform["value"] < 0.2
    for column in ("weights_sha256", "dtype", "device", "seconds", "version"):
        assert results[column].notna().all()


def test_removal_is_recorded_against_its_control(results):
    rows = results[
        (results.analysis == "induction") & results.metric.str.startswith("accuracy, second copy, induction")
    ]
    removed, control = rows[rows.control.isna()].iloc[0], rows[rows.control.notna()].iloc[0]
    assert removed["value"] < 0.3
    assert control["value"] == pytest.approx(1.0)
    assert control["control"] == "random heads of the same layers"


def test_the_page_says_what_was_found(reported, machine_folder):
    page = (reported / "report.html").read_text()
    assert "Head 1.0 puts 100% of its attention on the token that followed the same token earlier" in page
    assert (
        "The model has too few other heads for a test. Without head 1.0 the loss on the second copy goes from 0.00"
        in page
    )
    assert "Without head 1.1, the only other choice, it goes to 0.00 nats and 100%" in page
    assert f"interp report {machine_folder}" in page
    assert page.count("<svg") >= 4


def test_finished_parts_are_not_run_again(machine_folder, tmp_path, monkeypatch):
    asks = [
        Ask(
            name="machine",
            load=lambda: open_subject(str(machine_folder)),
            analyses=tuple(choose_analyses(["induction"])),
        )
    ]
    confirm = induction.confirm_heads

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(induction, "confirm_heads", killed)
    store = claim_folder(tmp_path / "run", {"models": ["machine"]})
    run = {"options": Options(quick=True), "command": "interp", "title": "t"}
    with pytest.raises(KeyboardInterrupt):
        run_asks(asks, store, **run)
    assert not (tmp_path / "run/report.html").exists()
    assert len(list(store.keys())) == 2

    def run_again(*args, **kwargs):
        raise AssertionError("a finished part was run again")

    monkeypatch.setattr(induction, "confirm_heads", confirm)
    monkeypatch.setattr(heads, "score_heads", run_again)
    run_asks(asks, claim_folder(tmp_path / "run", {"models": ["machine"]}), **run)
    monkeypatch.undo()
    run_asks(asks, claim_folder(tmp_path / "whole", {"models": ["machine"]}), **run)
    resumed, whole = (pd.read_parquet(tmp_path / name / "results.parquet") for name in ("run", "whole"))
    pd.testing.assert_frame_equal(resumed.drop(columns="seconds"), whole.drop(columns="seconds"))


def test_shards_that_start_together_share_a_folder_and_another_run_does_not(tmp_path):
    def claim(arguments):
        barrier, folder, seed = arguments
        barrier.wait()
        try:
            return claim_folder(folder, {"seed": seed}).folder
        except InputError as error:
            return "another run" if "holds another run" in str(error) else str(error)

    with ThreadPoolExecutor(4) as pool:
        for attempt in range(25):
            shared, contested = tmp_path / f"shared_{attempt}", tmp_path / f"contested_{attempt}"
            barrier = Barrier(4)
            assert set(pool.map(claim, [(barrier, shared, 0)] * 4)) == {shared}
            claimed = list(pool.map(claim, [(barrier, contested, seed) for seed in (0, 0, 1, 1)]))
            assert claimed in ([contested] * 2 + ["another run"] * 2, ["another run"] * 2 + [contested] * 2)
            assert sorted(path.name for path in shared.iterdir()) == ["cells", "run.json"]


def test_a_folder_of_another_run_is_refused(tmp_path):
    claim_folder(tmp_path / "run", {"seed": 0})
    claim_folder(tmp_path / "run", {"seed": 0})
    with pytest.raises(InputError, match=r"holds another run \(its seed is 0, not 1\); give another folder"):
        claim_folder(tmp_path / "run", {"seed": 1})
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("")
    with pytest.raises(InputError, match="isn't a report's folder"):
        claim_folder(tmp_path / "thesis", {"seed": 0})
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


def test_show_prints_numbers_controls_and_files(reported, run_interp):
    code, out, err = run_interp("show", reported)
    assert (code, err) == (0, "")
    line = next(line for line in out.splitlines() if line.startswith("induction score of head 1.0"))
    assert "1.000" in line
    assert "tokens not repeated" in line
    assert str(reported / "report.html") in out.replace("\n", "")
    code, out, _ = run_interp("show", reported, "--json")
    found = json.loads(out)
    assert found["headlines"][0]["control"] == "tokens not repeated"
    assert found["files"]["results"] == str(reported / "results.parquet")


@pytest.mark.skipif(find_chromium() is None, reason=SKIP_REASON)
def test_the_page_opens_offline_in_a_browser(reported):
    sizes = """[...document.querySelectorAll('figure svg')].map(svg => {
      const box = svg.getBoundingClientRect(); return Math.min(box.width, box.height); })"""
    with Browser() as browser:
        for width in (1440, 900):
            browser.open(reported / "report.html", width=width)
            shown = browser.evaluate(sizes)
            assert len(shown) == 4
            assert min(shown) > 50
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.console == []
        assert [address for address in browser.requests if not address.startswith("data:")] == []
