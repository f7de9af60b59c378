"""A model in which one head carries the answer from one position: every method names these two and nothing else."""

from typing import Any

import numpy as np
import pytest
import torch

import interp
from tasks.task import Batch
from tests.hand_built import build_reader

READ, LAST, N = 2, 5, 12
THE_HEAD = (1, 0)


@pytest.fixture(scope="module")
def reader() -> Any:
    return build_reader(position=READ)


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Distinct tokens; the answer is the one at `READ`."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.stack([torch.randperm(10, generator=generator)[: LAST + 1] for _ in range(N)])
    scored = (torch.arange(LAST + 1) == LAST).expand(N, -1)
    roles = {name: torch.full((N, 1), i) for i, name in enumerate(["first", "other", "read", "behind"])}
    roles |= {"near": torch.full((N, 1), 4), "last": torch.full((N, 1), LAST)}
    targets = tokens[:, READ : READ + 1].expand(-1, LAST + 1)
    return Batch(tokens=tokens, targets=targets, trained=scored, scored=scored, roles=roles)


@pytest.fixture(scope="module")
def corrupted(batch: Batch) -> torch.Tensor:
    """Every token moved on by one id: another answer, and other tokens everywhere else too."""
    return (batch.tokens + 1) % 10


@pytest.fixture(scope="module")
def metric(batch: Batch) -> Any:
    answer = batch.tokens[:, READ]
    return interp.logit_difference(answer, (answer + 1) % 10)


def where(effects: np.ndarray) -> list[tuple[int, ...]]:
    """The places with any effect."""
    return [tuple(int(i) for i in place) for place in np.argwhere(np.abs(effects) > 1e-4)]


def test_it_answers_by_what_it_reads(reader: Any, batch: Batch) -> None:
    assert torch.equal(reader(batch.tokens)[:, -1].argmax(-1), batch.targets[:, -1])


def test_patching_names_them(reader: Any, batch: Batch, corrupted: torch.Tensor, metric: Any) -> None:
    heads = interp.patch(reader, batch.tokens, corrupted, metric, site="z")
    assert where(heads.recovery) == [(*THE_HEAD, LAST)]
    assert heads.recovery[(*THE_HEAD, LAST)] == pytest.approx(1, abs=1e-4)
    values = interp.patch(reader, batch.tokens, corrupted, metric, site="v")
    assert where(values.recovery) == [(*THE_HEAD, READ)]
    stream = interp.patch(reader, batch.tokens, corrupted, metric, site="resid_pre")
    assert where(stream.recovery) == [(0, READ), (1, READ)]


def test_path_patching_names_them(reader: Any, batch: Batch, corrupted: torch.Tensor, metric: Any) -> None:
    result = interp.patch_paths(reader, batch.tokens, corrupted, metric, receivers="logits")
    assert [result.senders[i] for (i,) in where(result.recovery)] == [THE_HEAD]


@pytest.mark.parametrize("steps", [0, 3])
def test_attribution_names_them(reader: Any, batch: Batch, corrupted: torch.Tensor, metric: Any, steps: int) -> None:
    heads = interp.attribution_patch(reader, batch.tokens, corrupted, metric, site="z", steps=steps, check=3)
    assert where(heads.mean) == [(*THE_HEAD, LAST)]
    values = interp.attribution_patch(reader, batch.tokens, corrupted, metric, site="v", steps=steps, check=3)
    assert where(values.mean) == [(*THE_HEAD, READ)]


@pytest.mark.parametrize("mode", ["mask", "zero", "bos"])
def test_knock_out_names_them(reader: Any, batch: Batch, mode: Any) -> None:
    uncut = reader(batch.tokens)[:, -1]
    matters = []
    for layer, head, query, key in np.ndindex(2, 2, LAST + 1, LAST + 1):
        if key > query or (mode != "zero" and (key, query) == (0, 0)) or (mode == "bos" and key == 0):
            continue
        with interp.knock_out_attention(reader, queries=[query], keys=[key], mode=mode, layers=[layer], heads=[head]):
            if (reader(batch.tokens)[:, -1] - uncut).abs().max() > 1e-4:
                matters.append((layer, head, query, key))
    assert matters == [(*THE_HEAD, LAST, READ)]


@pytest.mark.parametrize("mode", ["mask", "zero", "bos"])
def test_information_flow_names_them(reader: Any, batch: Batch, mode: Any) -> None:
    flow = interp.information_flow(reader, batch, mode=mode, n_controls=5)
    names = {(layer, flow.roles[query], flow.roles[key]) for layer, query, key in where(np.nan_to_num(flow.mean_kl))}
    assert names == {(1, "last", "read")}
    by_head = interp.information_flow(reader, batch, mode=mode, heads=[(1, 1)], n_controls=5)
    assert where(np.nan_to_num(by_head.mean_kl)) == []


def test_removal_names_the_head(reader: Any, batch: Batch) -> None:
    uncut = reader(batch.tokens)[:, -1]
    moved = []
    for head in np.ndindex(2, 2):
        with interp.ablate_heads(reader, [head]):
            if (reader(batch.tokens)[:, -1] - uncut).abs().max() > 1e-4:
                moved.append(head)
    assert moved == [THE_HEAD]
