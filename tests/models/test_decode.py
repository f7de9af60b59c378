"""Greedy decoding with a draft writes what one token at a time writes, whatever the draft."""

from types import SimpleNamespace

import pytest
import torch

import interp
from interp.errors import InputError
from interp.models import decode
from interp.models.decode import decode_greedily
from tasks.grammar import TenseInflection
from tests.conftest import make_tiny
from tests.untyped import as_without_type_checks

END = 4


def write_slowly(model, prompt, *, n_tokens, end=END):
    """One token a pass, one row alone."""
    written, n_ctx = [], model.cfg.n_ctx
    while len(written) < n_tokens and len(prompt) + len(written) < n_ctx:
        row = torch.tensor([[*prompt, *written]])
        written.append(int(model(row)[0, -1].argmax()))
        if written[-1] == end:
            break
    return [*written, *[0] * (n_tokens - len(written))]


def draw(n, d_vocab, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(d_vocab, (n, length), generator=generator), torch.randint(1, length, (n,), generator=generator)


@pytest.mark.parametrize("n_tokens", [1, 5, 30])
def test_it_writes_what_one_token_at_a_time_writes(n_tokens):
    model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=9, n_ctx=20, seed=3, device="cpu", gamma=0.0)
    tokens, first = draw(20, 9, 12)
    expected = [
        write_slowly(model, row[:at].tolist(), n_tokens=n_tokens) for row, at in zip(tokens, first, strict=True)
    ]
    for drafts in (tokens, torch.full_like(tokens, 1), torch.full_like(tokens, END)):
        prompts = torch.where(torch.arange(12) < first[:, None], tokens, drafts)
        written = decode_greedily(model, prompts, first=first, end=END, n_tokens=n_tokens, batch_size=8)
        assert written.tolist() == expected
    assert any(END in row for row in expected)
    assert any(END not in row for row in expected)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_it_runs_on_bridges(family):
    from interp.models.convert import _make_bridge, prepare, private_copy

    hf = make_tiny(family)
    bridge = _make_bridge(prepare(private_copy(hf)), name="tiny", reason="wanted here")
    tokens, first = draw(6, 97, 8)
    written = decode_greedily(bridge, tokens, first=first, end=END, n_tokens=4)
    assert written.tolist() == [
        write_slowly(bridge, row[:at].tolist(), n_tokens=4) for row, at in zip(tokens, first, strict=True)
    ]


def test_a_right_draft_takes_one_pass_and_each_mistake_one_more(monkeypatch):
    task = TenseInflection(train=50, validation=40, generalisation=10)
    batch = task.sample(8, split="validation", seed=0)
    marker, end = batch.roles["marker"][:, 0], task.vocabulary.index("end")
    truth = torch.cat([batch.tokens, torch.zeros(8, 30, dtype=torch.long)], dim=1)
    passes = []

    def give_right_logits(model, rows, positions):
        passes.append(len(rows))
        targets = truth[:, 1 : rows.shape[1] + 1]
        return torch.nn.functional.one_hot(targets[: len(rows)][positions], task.d_vocab).float()

    monkeypatch.setattr(decode, "logits_at", give_right_logits)
    model = SimpleNamespace(cfg=SimpleNamespace(n_ctx=task.n_ctx, device="cpu", attention_dir="causal"))
    written = decode_greedily(model, batch.tokens, first=marker + 1, end=end, n_tokens=20, batch_size=8)
    assert passes == [8]
    assert (task.score_written(written, batch)["exact_match"] == 1).all()
    drafts = batch.tokens.clone()
    for step in (2, 4):
        drafts[torch.arange(8), marker + step] = task.vocabulary.index("yak")
    passes.clear()
    assert torch.equal(decode_greedily(model, drafts, first=marker + 1, end=end, n_tokens=20, batch_size=8), written)
    assert len(passes) <= 3


def test_mistakes_are_named():
    model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=6, attn_only=True, device="cpu")
    tokens = torch.zeros(2, 8, dtype=torch.long)
    with pytest.raises(InputError, match="n_tokens=0 writes nothing; give at least 1"):
        decode_greedily(model, tokens, first=torch.tensor([1, 1]), end=4, n_tokens=0)
    with (
        as_without_type_checks(),
        pytest.raises(InputError, match="first has 1 positions for 2 rows; give one for each row"),
    ):
        decode_greedily(model, tokens, first=torch.tensor([1]), end=4)
    with pytest.raises(
        InputError, match=r"begin at positions 0 to 1, but a prompt needs a token.*give positions 1 to 5"
    ):
        decode_greedily(model, tokens, first=torch.tensor([0, 1]), end=4)
    with pytest.raises(InputError, match="begin at positions 1 to 6"):
        decode_greedily(model, tokens, first=torch.tensor([1, 6]), end=4)
    model.cfg.attention_dir = "bidirectional"
    with pytest.raises(
        InputError, match="reads later tokens, so it can't write one after the other; give a causal model"
    ):
        decode_greedily(model, tokens, first=torch.tensor([1, 1]), end=4)
