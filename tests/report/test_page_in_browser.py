"""What a reader meets, in a real browser with the network off."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from analyses.report import write_page
from interp.figures import bundle, show_attention
from tests.browser import SKIP_REASON, Browser, dump_dom, find_chromium, screenshot
from tests.report.example import make_folded, make_page

pytestmark = pytest.mark.skipif(find_chromium() is None, reason=SKIP_REASON)

VISIBLE = """[...document.querySelectorAll('figure svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect());
  return [box.width, box.height, texts.filter(text => text.width > 0 && text.height > 0).length, texts.length];
})"""
COLUMN = "[...document.querySelectorAll('table')[0].tBodies[0].rows].map(row => row.cells[{}].textContent)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(make_page(), path)
    return path


@pytest.fixture(autouse=True)
def quiet(browser: Browser) -> Iterator[None]:
    browser.console.clear()
    browser.requests.clear()
    yield
    assert browser.console == []
    assert [address for address in browser.requests if not address.startswith("data:")] == []


@pytest.mark.parametrize("width", [1440, 900, 420])
@pytest.mark.parametrize("dark", [False, True])
def test_every_figure_is_visible_and_the_page_fits_its_window(browser: Browser, page: Path, width: int, dark: bool):
    browser.open(page, width=width, dark=dark)
    figures = browser.evaluate(VISIBLE)
    assert len(figures) == 10
    for shown_width, shown_height, visible_texts, texts in figures:
        assert shown_width > 100
        assert shown_height > 50
        assert visible_texts == texts > 0
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    dark_background = browser.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark_background == dark
    assert browser.evaluate("document.getElementById('x')") is None


def test_figures_change_colour_with_the_theme_and_the_toggle_overrules_the_system(browser: Browser, page: Path):
    browser.open(page, dark=False)
    colour = "getComputedStyle(document.querySelector('figure svg text')).fill"
    label = "document.querySelector('button.theme').textContent"
    press = "document.querySelector('button.theme').click()"
    light = browser.evaluate(colour)
    assert browser.evaluate(label) == "Theme: automatic"
    browser.evaluate(press)
    browser.evaluate(press)
    assert browser.evaluate(label) == "Theme: dark"
    assert browser.evaluate(colour) != light
    browser.open(page, dark=False)
    assert browser.evaluate(label) == "Theme: dark"
    assert browser.evaluate(colour) != light
    browser.evaluate(press)
    assert browser.evaluate(label) == "Theme: automatic"
    assert browser.evaluate(colour) == light


def test_a_press_sorts_the_table_and_missing_values_stay_last(browser: Browser, page: Path):
    browser.open(page)
    state = "[...document.querySelectorAll('table')[0].querySelectorAll('th')].map(th => th.getAttribute('aria-sort'))"
    press = "document.querySelectorAll('table')[0].querySelectorAll('th button')[{}].click()"
    browser.evaluate(press.format(1))
    assert browser.evaluate(state) == ["none", "descending", "none", "none"]
    assert browser.evaluate(COLUMN.format(1)) == ["0.970", "<0.001", "−0.500", "–"]
    browser.evaluate(press.format(1))
    assert browser.evaluate(state) == ["none", "ascending", "none", "none"]
    assert browser.evaluate(COLUMN.format(1)) == ["−0.500", "<0.001", "0.970", "–"]
    browser.evaluate(press.format(0))
    assert browser.evaluate(state) == ["ascending", "none", "none", "none"]
    assert browser.evaluate(COLUMN.format(0))[-3:] == ["2.9", "2.10", "18.6"]
    browser.evaluate(press.format(3))
    assert browser.evaluate(COLUMN.format(3)) == ["1,000", "50", "7", "–"]


def test_everything_that_can_be_pressed_can_be_reached_by_keyboard(browser: Browser, page: Path):
    browser.open(page)
    reachable = browser.evaluate(
        "[...document.querySelectorAll('a, button, summary, .table')].every(each => each.hidden || each.tabIndex === 0)"
    )
    assert reachable
    browser.evaluate("document.querySelector('.skip').focus()")
    assert browser.evaluate("document.querySelector('.skip').getBoundingClientRect().top") > 0
    assert browser.evaluate("document.getElementById('main').tabIndex") == -1


def test_the_print_has_every_detail_open_and_keeps_its_figures(browser: Browser, page: Path, tmp_path: Path):
    browser.open(page, dark=True)
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert all(figure[0] > 100 for figure in browser.evaluate(VISIBLE))
    hidden = (
        "[...document.querySelectorAll('nav, button.quiet')].every(each => getComputedStyle(each).display === 'none')"
    )
    assert browser.evaluate(hidden)
    browser.call("Emulation.setEmulatedMedia", media="")
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate("document.querySelectorAll('details[open]').length") == 0
    browser.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


OPEN = "[...document.querySelectorAll('details.fold[open]')].map(fold => fold.id)"


def test_a_link_unfolds_what_it_leads_to(browser: Browser, tmp_path: Path):
    path = tmp_path / "folds.html"
    write_page(make_folded(), path)
    browser.open(path)
    browser.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    assert browser.evaluate(OPEN) == []
    ring = "document.querySelectorAll('#model-2-all svg a')[1]"
    browser.evaluate(f"{ring}.dispatchEvent(new MouseEvent('click', {{bubbles: true, cancelable: true}}))")
    assert browser.evaluate(OPEN) == ["model-2-seed-1"]
    browser.evaluate("document.querySelector('#model-1-all td a').click()")
    assert browser.evaluate(OPEN) == ["model-1-seed-0", "model-2-seed-1"]
    assert browser.evaluate("location.hash") == "#model-1-seed-0"
    top = browser.evaluate("document.getElementById('model-1-seed-0').getBoundingClientRect().top")
    assert 0 <= top < 100
    browser.evaluate("document.getElementById('model-1-seed-0').open = false")
    browser.evaluate("document.querySelector('#model-1-all td a').click()")  # the address stays as it is
    assert "model-1-seed-0" in browser.evaluate(OPEN)


def test_a_press_anywhere_in_a_ring_follows_its_link(browser: Browser, tmp_path: Path):
    path = tmp_path / "folds.html"
    write_page(make_folded(), path)
    browser.open(path)
    place = browser.evaluate(
        "(() => { const box = document.querySelector('#model-1-all svg a').getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    hit = f"document.elementFromPoint({place[0]}, {place[1]})?.closest('a')?.getAttribute('href')"
    assert browser.evaluate(hit) == "#model-1-seed-0"


def test_a_folded_section_stays_folded_in_print(browser: Browser, tmp_path: Path):
    path = tmp_path / "folds.html"
    write_page(make_folded(), path)
    browser.open(path)
    browser.evaluate("document.getElementById('model-1-seed-0').open = true")
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate(OPEN) == ["model-1-seed-0"]
    browser.call("Emulation.setEmulatedMedia", media="print")
    heights = browser.evaluate("[...document.querySelectorAll('details.fold')].map(fold => fold.offsetHeight)")
    assert heights[0] > 3 * heights[1]
    browser.call("Emulation.setEmulatedMedia", media="")


def test_several_attention_views_are_drawn_offline_and_a_token_stays_text(browser: Browser, tmp_path: Path):
    patterns = np.tril(np.ones((2, 3, 3))) / np.arange(1, 4)[:, None]
    views = [
        show_attention(patterns, ["the", " cat", " sat"], head_names=["0.1", "5.6"]),
        show_attention(patterns, ["</script><b id=x>INJECT</b>", "<b id=y>", "\n"]),
        show_attention(patterns[:1], ["a", "b", "c"]),
    ]
    path = tmp_path / "views.html"
    path.write_text(f"<!doctype html><meta charset=utf-8><title>Views</title>{bundle(views)}", encoding="utf-8")
    assert path.stat().st_size < 2_000_000
    browser.open(path)
    sizes = browser.evaluate(
        "[...document.querySelectorAll('.attention-view')].map(view => "
        "[view.childElementCount, view.getBoundingClientRect().height, view.querySelectorAll('canvas').length])"
    )
    assert len(sizes) == 3
    for children, height, pictures in sizes:
        assert children > 0
        assert height > 50
        assert pictures > 0
    text = browser.evaluate("document.body.innerText").replace("\u00a0", " ")
    assert "5.6" in text
    assert "</script><b id=x>INJECT</b>" in text
    assert "<b id=y>" in text
    assert "↵" in text
    assert browser.evaluate("document.querySelectorAll('#x, #y').length") == 0
    # Its drawing by WebGL in software is what Chromium warns about, on a machine without a graphics card.
    browser.console[:] = [line for line in browser.console if "WebGL" not in line]


def test_the_browser_itself_reports_errors_and_requests(tmp_path: Path):
    path = tmp_path / "bad.html"
    path.write_text(
        "<!doctype html><img src='http://example.org/a.png'>"
        "<script>console.error('seen'); throw Error('thrown')</script>"
    )
    with Browser() as own:
        own.open(path)
        assert own.requests == ["http://example.org/a.png"]
        assert any("seen" in line for line in own.console)
        assert any("thrown" in line for line in own.console)
        with pytest.raises(RuntimeError, match="failed in the page"):
            own.evaluate("nothing.here")


def test_the_one_line_helpers(page: Path, tmp_path: Path):
    assert "Theme: automatic" in dump_dom(page)
    screenshot(page, tmp_path / "page.png", 420, dark=True)
    content = (tmp_path / "page.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") == 420
