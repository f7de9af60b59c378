import numpy as np
import pandas as pd
import pytest

from analyses.report.table import Link, format_table
from interp.records import Measurement, to_frame


def texts(frame: pd.DataFrame) -> list[list[str]]:
    return [[cell.text for cell in row] for row in format_table(frame).rows]


def column(values: list, dtype: str | None = None) -> list[str]:
    return [row[0] for row in texts(pd.DataFrame({"a": pd.Series(values, dtype=dtype)}))]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5, 0.12345], ["0.500", "0.123"]),
        ([12.345, 0.5], ["12.35", "0.50"]),
        ([1234.56, -1.0], ["1,234.6", "−1.0"]),
        ([0.5, 0.0, 2e-5, -2e-5, 6e-4], ["0.500", "0.000", "<0.001", ">−0.001", "0.001"]),
        ([2e-5, 0.0], ["2.0×10⁻⁵", "0"]),
        ([0.5, None, float("nan"), float("inf"), -float("inf")], ["0.500", "–", "–", "∞", "−∞"]),
        ([], []),
    ],
)
def test_numbers_have_the_digits_that_their_column_needs(values: list, expected: list[str]):
    assert column(values, "float64") == expected
    assert column(values, "Float64") == expected


def test_integers_booleans_and_text():
    assert column([5000, -3, None], "Int64") == ["5,000", "−3", "–"]
    assert column([True, False]) == ["yes", "no"]
    assert column([True, None], "boolean") == ["yes", "–"]
    assert column(["18.6", None, pd.NA], "string") == ["18.6", "–", "–"]
    assert column([(18, 6), None], "object") == ["(18, 6)", "–"]


def test_an_interval_is_one_column_with_the_digits_of_its_number():
    frame = pd.DataFrame({"loss": [5.0, 12.0], "loss_low": [4.0, 11.5], "loss_high": [6.0, 13.0], "low": [0.1, None]})
    table = format_table(frame)
    assert [heading.name for heading in table.columns] == ["loss", "loss, 95% interval", "low"]
    assert texts(frame) == [["5.00", "[4.00, 6.00]", "0.100"], ["12.00", "[11.50, 13.00]", "–"]]
    assert [row[1].sort for row in table.rows] == ["4.0", "11.5"]


def test_a_records_frame_is_readable_as_it_is():
    frame = to_frame([Measurement(analysis="heads", metric="induction", value=0.9, low=0.8, high=0.95, n=50, layer=3)])
    table = format_table(frame[["metric", "value", "low", "high", "n", "layer", "control"]])
    assert [heading.name for heading in table.columns] == ["metric", "value", "95% interval", "n", "layer", "control"]
    assert [cell.text for cell in table.rows[0]] == ["induction", "0.900", "[0.800, 0.950]", "50", "3", "–"]
    assert [heading.numeric for heading in table.columns] == [False, True, True, True, True, False]


def test_sorting_uses_the_number_itself_and_missing_has_none():
    table = format_table(pd.DataFrame({"value": [0.1 + 0.2, np.nan]}))
    assert [row[0].sort for row in table.rows] == [repr(0.1 + 0.2), ""]


def test_a_link_is_a_text_that_leads_somewhere():
    table = format_table(pd.DataFrame({"model": [Link(text="seed 2", anchor="a-2"), None]}))
    assert [(row[0].text, row[0].sort, row[0].anchor) for row in table.rows] == [
        ("seed 2", "seed 2", "a-2"),
        ("–", "", ""),
    ]
    assert not table.columns[0].numeric
