"""One row a number: what was measured, on what, how sure it is, and by which version.

A headline number and its control are two rows that differ in `control`. Columns keep their nullable dtypes in every
frame, an empty one too, so that frames of different runs stack and their Parquet files read alike.

>>> frame = to_frame([
...     Measurement(analysis="heads", metric="induction", value=0.93, low=0.91, high=0.95, n=50, layer=18, head=6),
...     Measurement(analysis="heads", metric="induction", value=0.02, n=50, layer=18, control="untrained model"),
... ])
>>> frame[["metric", "value", "layer", "control"]].to_dict("records")[1]["control"]
'untrained model'
>>> str(frame["layer"].dtype), str(to_frame([])["layer"].dtype)
('Int64', 'Int64')
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One number with all that is needed to read it alone; a value that is undefined is NaN, and `note` says why."""

    analysis: str
    """The question it belongs to, such as "heads"."""
    metric: str
    """What was measured, such as "induction"."""
    value: float
    """The number."""
    unit: str | None = None
    """Its unit, such as "nats per token"; None for a bare ratio."""
    low: float | None = None
    """Lower end of its 95% interval."""
    high: float | None = None
    """Upper end of its 95% interval."""
    n: int | None = None
    """How many independent samples the interval is over."""
    control: str | None = None
    """None for the thing itself; otherwise the control this row is, such as "random heads of the same layers"."""
    model: str | None = None
    """The model's name as the user typed it."""
    revision: str | None = None
    """The revision of a hub model."""
    weights_sha256: str | None = None
    """Hash of the weights that were measured."""
    task: str | None = None
    """What the model was asked."""
    data_sha256: str | None = None
    """Hash of the tokens it read."""
    step: int | None = None
    """Training step of the checkpoint."""
    layer: int | None = None
    """Layer, from 0."""
    head: int | None = None
    """Head in its layer, from 0."""
    position: int | None = None
    """Position in the sequence, from 0."""
    rank: int | None = None
    """Rank of the subspace."""
    seed: int | None = None
    """The seed it was drawn with."""
    dtype: str | None = None
    """The dtype of the weights while measured."""
    device: str | None = None
    """The device it ran on."""
    seconds: float | None = None
    """Wall time of the run that gave it."""
    version: str | None = None
    """The version of this library."""
    note: str | None = None
    """Anything a reader must know, such as a batch that was halved."""


def _choose_dtype(annotation: object) -> str:
    name = str(annotation)
    return "Int64" if "int" in name else "Float64" if "float" in name else "string"


_DTYPES: dict[str, Any] = {field.name: _choose_dtype(field.type) for field in fields(Measurement)}
COLUMNS: tuple[str, ...] = tuple(_DTYPES)
"""The columns of every records frame, in order."""


def to_frame(measurements: Sequence[Measurement]) -> pd.DataFrame:
    """Rows in the order given, with every column of `COLUMNS` and the same dtypes whatever is in them."""
    columns = {
        name: pd.array([getattr(row, name) for row in measurements], dtype=dtype) for name, dtype in _DTYPES.items()
    }
    return pd.DataFrame(columns, columns=list(COLUMNS))


def concatenate(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Records frames one below the other; older frames without a newer column get it empty."""
    aligned = [frame.reindex(columns=list(COLUMNS)).astype(_DTYPES) for frame in frames]
    return pd.concat(aligned, ignore_index=True) if aligned else to_frame([])
