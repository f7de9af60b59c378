"""Charts of models with norms behind the sums: packed rows against masked passes and against the definition."""

from typing import Any

import numpy as np
import pytest
import torch

import interp
from interp.trees.causal import can_pack
from interp.trees.charts import measure_charts
from tests.models.test_post_norm import KINDS, build
from tests.trees.test_charts import SUB_WORDS, WORDS, measure_directly


@pytest.mark.parametrize("bos", [None, 0], ids=["without BOS", "with BOS"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_chart_is_that_of_a_masked_pass_for_every_span(kind: str, bos: int | None) -> None:
    model = build(kind)
    assert can_pack(model, 12)
    charts = measure_charts(model, WORDS + SUB_WORDS, bos="none" if bos is None else bos)
    lowest = []
    for index, sentence in enumerate(WORDS + SUB_WORDS):
        expected = measure_directly(model, sentence, bos=bos)
        np.testing.assert_allclose(charts.similarities[index].numpy(), expected, atol=1e-5)
        lowest.append(np.nanmin(expected))
    assert min(lowest) < 0.9  # the masks do something


@pytest.mark.parametrize("threshold_layer", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_give_the_charts_of_masked_passes_through_the_model(kind: str, threshold_layer: int) -> None:
    model = build(kind)
    how: dict[str, Any] = {"bos": 0, "threshold_layer": threshold_layer}
    packed = measure_charts(model, WORDS + SUB_WORDS, **how)
    with interp.add_hooks(model, [("hook_embed", lambda embedded, hook: None)]):  # a caller's hook is never passed by
        assert not can_pack(model, 12)
        masked = measure_charts(model, WORDS + SUB_WORDS, **how)
    for one, other in zip(packed.similarities, masked.similarities, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0, equal_nan=True)
