"""Chosen heads over one sequence: the patterns are those of the forward pass, in the order asked for."""

from typing import Any

import numpy as np
import pytest
import torch

import interp
from interp.errors import InputError
from interp.heads.show import show_heads
from tests.conftest import make_tiny, make_tokenizer
from tests.hand_built import build_copying_machine


def test_the_patterns_are_those_of_the_forward_pass_in_the_order_asked_for(both: tuple[Any, Any]) -> None:
    tokens = torch.arange(5)
    for model in both:
        view = show_heads(model, tokens, [(1, 2), (0, 1), (1, 0)])
        cache = model.run_with_cache(tokens[None])[1]
        expected = [cache[f"blocks.{layer}.attn.hook_pattern"][0, head] for layer, head in [(1, 2), (0, 1), (1, 0)]]
        np.testing.assert_allclose(view.patterns, torch.stack(expected).numpy(), atol=1e-4)
        assert view.head_names == ("1.2", "0.1", "1.0")


def test_roles_stand_beside_their_tokens() -> None:
    view = show_heads(build_copying_machine(), torch.tensor([3, 7, 3]), [(1, 0)], roles={1: "answer", 2: "last"})
    assert view.tokens == ("3", "7 ⟨answer⟩", "3 ⟨last⟩")
    assert view.patterns[0, 2].round().tolist() == [0, 1, 0]


def test_a_text_is_read_by_the_models_tokenizer_and_nothing_is_put_in_front() -> None:
    hf = make_tiny("gpt2")
    model = interp.load(hf, tokenizer=make_tokenizer())
    assert show_heads(model, "abc", [(0, 0)]).tokens == ("a", "b", "c")


@pytest.mark.parametrize(
    ("tokens", "heads", "roles", "message"),
    [
        (torch.tensor([99]), [(0, 0)], None, r"The token ids \[99\] can't be shown: give at least one, from 0 to 29"),
        (torch.tensor([1]), [(2, 0)], None, "Head 2.0 doesn't exist"),
        (torch.tensor([1]), [(0, 0)], {1: "last"}, "a role for position 1, but the tokens have positions 0 to 0"),
        ("words", [(0, 0)], None, "has no tokenizer, so it cannot read text"),
    ],
)
def test_what_cannot_be_shown_is_refused(tokens: Any, heads: Any, roles: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        show_heads(build_copying_machine(), tokens, heads, roles=roles)
