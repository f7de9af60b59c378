import json
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from interp.errors import InputError
from interp.figures import attention as attention_module
from interp.figures import bundle, show_attention
from tests.untyped import as_without_type_checks

TOKENS = ["<|endoftext|>", " the", " cat"]


def make_patterns(n_heads: int = 2) -> np.ndarray:
    weights = np.tril(np.random.default_rng(0).random((n_heads, 3, 3)))
    return weights / weights.sum(-1, keepdims=True)


class ScriptCounter(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)


def read_properties(html: str) -> list[dict]:
    return [json.loads(text) for text in re.findall(r"AttentionPatterns, (\{.*?\})\)</script>", html)]


def test_properties_are_the_rounded_patterns_with_their_names():
    patterns = make_patterns()
    (properties,) = read_properties(show_attention(patterns, TOKENS, head_names=["0.1", "5.6"])._repr_html_())
    assert properties["tokens"] == ["&lt;|endoftext|&gt;", " the", " cat"]
    assert properties["headLabels"] == ["0.1", "5.6"]
    assert np.array_equal(properties["attention"], np.round(patterns, 4))


def test_the_library_is_there_once_and_each_view_has_a_closed_element_of_its_own():
    view = show_attention(make_patterns(), TOKENS)
    html = bundle([view, view, view])
    assert len(html) < 2_000_000
    assert html.count("var CircuitsVis=") == 1
    roots = re.findall(r'<div id="([\w-]+)" class="attention-view"></div>', html)
    assert len(set(roots)) == 3
    assert re.findall(r'CircuitsVis\.render\("([\w-]+)"', html) == roots
    parsed = ScriptCounter()
    parsed.feed(html)
    assert parsed.elements == ["script", "div", "script", "div", "script", "div", "script"]


def test_a_token_or_a_name_cannot_leave_its_script():
    hostile = ["</script><b id=x>", "<!--<script>", "\u2028\n"]
    html = show_attention(make_patterns(1), hostile, head_names=["</script>"])._repr_html_()
    properties = html[html.rindex("AttentionPatterns, ") : html.rindex(")</script>")]
    assert "<" not in properties
    assert "\u2028" not in properties
    assert read_properties(html)[0]["tokens"] == [
        "&lt;/script&gt;&lt;b id=x&gt;",
        "&lt;!--&lt;script&gt;",
        "\u2028↵",
    ]


def test_circuitsvis_is_read_but_never_imported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "circuitsvis.attention", None)
    before = {name for name in sys.modules if name.startswith("circuitsvis")}
    show_attention(make_patterns(), TOKENS)._repr_html_()
    assert {name for name in sys.modules if name.startswith("circuitsvis")} == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_of_any_dtype_with_gradients_are_welcome(dtype: torch.dtype):
    tensor = torch.tensor(make_patterns()).to(dtype).requires_grad_()
    view = show_attention(tensor, TOKENS)
    np.testing.assert_allclose(view.patterns, make_patterns(), atol=5e-3 if dtype == torch.bfloat16 else 1e-4)
    assert repr(view) == "AttentionView(2 heads: head 0, head 1; 3 tokens)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patterns": make_patterns()[None]}, r"shape \(1, 2, 3, 3\) and 3 tokens.*pattern\[0\]"),
        ({"patterns": make_patterns()[0]}, r"shape \(3, 3\)"),
        ({"patterns": make_patterns(0)}, r"shape \(0, 3, 3\)"),
        ({"tokens": TOKENS[:2]}, r"and 2 tokens; it needs \[head, query, key\] = \(heads, 2, 2\)"),
        ({"tokens": [5, 6, 7]}, r"token 5 of type int; tokens must be text.*to_str_tokens"),
        ({"head_names": ["one"]}, "1 head names for 2 heads"),
        ({"patterns": np.full((2, 3, 3), np.nan)}, "no NaN"),
        ({"patterns": make_patterns() * 30}, "pattern, not the scores"),
        ({"patterns": make_patterns() - 5}, "pattern, not the scores"),
    ],
)
def test_what_would_be_drawn_wrong_or_blank_is_refused(change: dict, message: str):
    given = {"patterns": make_patterns(), "tokens": TOKENS, "head_names": None} | change
    with as_without_type_checks(), pytest.raises(InputError, match=message):
        show_attention(given["patterns"], given["tokens"], head_names=given["head_names"])


def test_more_than_a_browser_shows_well_is_refused():
    with pytest.raises(InputError, match=r"12 heads over 256 tokens are 786,432 numbers.*fewer heads"):
        show_attention(np.zeros((12, 256, 256)), ["a"] * 256)


def test_a_missing_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch):
    attention_module._read_library.cache_clear()
    monkeypatch.setattr(attention_module, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install 'circuitsvis"):
        show_attention(make_patterns(), TOKENS)._repr_html_()
