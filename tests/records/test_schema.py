import io
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.records import COLUMNS, Measurement, to_frame
from interp.records.schema import concatenate

EXPECTED = [
    *("analysis", "metric", "value", "unit", "low", "high", "n", "control"),
    *("model", "revision", "weights_sha256", "task", "data_sha256", "step"),
    *("layer", "head", "position", "rank", "seed", "dtype", "device", "seconds", "version", "note"),
]
INTEGERS = {"n", "step", "layer", "head", "position", "rank", "seed"}
FLOATS = {"value", "low", "high", "seconds"}


def test_columns_are_the_documented_ones_and_the_fields_of_a_measurement():
    assert list(COLUMNS) == EXPECTED == [field.name for field in fields(Measurement)]


def test_dtypes_do_not_depend_on_what_is_in_the_frame():
    empty = to_frame([])
    bare = to_frame([Measurement(analysis="a", metric="m", value=1.0)])
    for frame in (empty, bare, concatenate([]), concatenate([empty, bare])):
        assert list(frame.columns) == EXPECTED
        for name in EXPECTED:
            expected = "Int64" if name in INTEGERS else "Float64" if name in FLOATS else "string"
            assert str(frame[name].dtype) == expected


def test_undefined_value_reads_as_missing_and_infinity_stays():
    frame = to_frame([Measurement(analysis="a", metric="m", value=v) for v in (np.nan, np.inf, 0.0)])
    assert frame["value"].isna().tolist() == [True, False, False]
    assert frame["value"][1] == np.inf


def test_a_frame_without_a_newer_column_gets_it_empty():
    old = to_frame([Measurement(analysis="a", metric="m", value=1.0, note="x")]).drop(columns=["note", "rank"])
    frame = concatenate([old])
    assert list(frame.columns) == EXPECTED
    assert frame["note"].isna().all()
    assert str(frame["rank"].dtype) == "Int64"


texts = st.none() | st.text(max_size=5)
integers = st.none() | st.integers(-(2**63), 2**63 - 1)
numbers = st.none() | st.floats(allow_nan=False)


@given(
    st.lists(
        st.builds(
            Measurement,
            analysis=st.text(max_size=3),
            value=st.floats(allow_nan=False),
            unit=texts,
            low=numbers,
            step=integers,
            seed=integers,
            note=texts,
            control=texts,
        ),
        max_size=4,
    )
)
def test_parquet_gives_back_every_field(measurements: list[Measurement]):
    buffer = io.BytesIO()
    to_frame(measurements).to_parquet(buffer, index=False)
    back = pd.read_parquet(io.BytesIO(buffer.getvalue()))
    pd.testing.assert_frame_equal(back, to_frame(measurements))
    for row, measurement in zip(back.itertuples(index=False), measurements, strict=True):
        for name in EXPECTED:
            given_value, read = getattr(measurement, name), getattr(row, name)
            assert (read is pd.NA) if given_value is None else read == given_value


@pytest.mark.parametrize("name", ["analysis", "metric", "value"])
def test_what_a_row_cannot_be_without(name: str):
    arguments = {"analysis": "a", "metric": "m", "value": 1.0}
    del arguments[name]
    with pytest.raises(TypeError, match=name):
        Measurement(**arguments)
