"""A frame as the cells of a table that a person reads: aligned, rounded alike, intervals in one column.

Columns `low` and `high` become one column "95% interval", as do `<name>_low` and `<name>_high`. Numbers of a column,
and of its interval, have the same number of decimals; a missing value is a dash and sorts last. A `Link` leads to another
section.

>>> table = format_table(pd.DataFrame({"head": ["18.6", "2.0"], "value": [0.93412, None], "low": [0.9, None],
...                                    "high": [0.96, None]}))
>>> [column.name for column in table.columns]
['head', 'value', '95% interval']
>>> [cell.text for cell in table.rows[0]], [cell.text for cell in table.rows[1]]
(['18.6', '0.934', '[0.900, 0.960]'], ['2.0', '–', '–'])
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MISSING = "–"
_SCIENTIFIC = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A heading."""

    name: str
    """What stands in the heading."""
    numeric: bool
    """Right-aligned, and sorted as numbers, greatest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A value of a frame that leads to a section of the same model."""

    text: str
    """What a person reads."""
    anchor: str
    """The section's name in links."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCell:
    """A cell."""

    text: str
    """What a person reads."""
    sort: str
    """What the column is sorted by: a number for a numeric column, empty where there is none."""
    anchor: str = ""
    """The section that it leads to, empty for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Headings and rows."""

    columns: tuple[Column, ...]
    """From left to right."""
    rows: tuple[tuple[TableCell, ...], ...]
    """From top to bottom, in the frame's order."""


def format_table(frame: pd.DataFrame) -> Table:
    """The frame without its index, every column formatted."""
    frame = frame.rename(columns=str)
    names = list(frame.columns)
    columns: list[Column] = []
    cells: list[list[TableCell]] = []
    for name in names:
        series = frame[name]
        if name.endswith("high") and name[:-4] + "low" in names:
            continue
        if name.endswith("low") and name[:-3] + "high" in names:
            stem = name[:-3].rstrip("_ ")
            high = frame[name[:-3] + "high"]
            decimals = _choose_decimals(_find_company(frame, stem))
            numbers = zip(_to_floats(series), _to_floats(high), strict=True)
            columns.append(Column(name=f"{_humanise(stem)}, 95% interval" if stem else "95% interval", numeric=True))
            cells.append([_format_interval(low, above, decimals) for low, above in numbers])
        elif types.is_bool_dtype(series):
            columns.append(Column(name=_humanise(name), numeric=False))
            cells.append([_format_text({True: "yes", False: "no"}.get(value)) for value in series])
        elif types.is_integer_dtype(series):
            columns.append(Column(name=_humanise(name), numeric=True))
            cells.append([_format_integer(value) for value in series])
        elif types.is_float_dtype(series):
            decimals = _choose_decimals(_find_company(frame, name))
            columns.append(Column(name=_humanise(name), numeric=True))
            cells.append([_format_number(value, decimals) for value in _to_floats(series)])
        else:
            columns.append(Column(name=_humanise(name), numeric=False))
            cells.append([_format_text(value) for value in series])
    return Table(columns=tuple(columns), rows=tuple(zip(*cells, strict=True)))


def _find_company(frame: pd.DataFrame, stem: str) -> np.ndarray:
    """The numbers that should have as many decimals as column `stem`: its own and its interval's."""
    stem = stem or ("value" if "value" in frame.columns else "")
    prefixes = ("", f"{stem}_", f"{stem} ") if stem in ("", "value") else (f"{stem}_", f"{stem} ")
    names = [stem, *(prefix + end for prefix in prefixes for end in ("low", "high"))]
    return np.concatenate([_to_floats(frame[name]) for name in names if name in frame.columns] or [np.zeros(0)])


def _to_floats(series: pd.Series) -> np.ndarray:
    return series.to_numpy(dtype=float, na_value=np.nan)


def _choose_decimals(values: np.ndarray) -> int:
    finite = np.abs(values[np.isfinite(values)])
    largest = finite.max() if finite.size else 0.0
    if 0 < largest < 0.001:
        return _SCIENTIFIC
    return 1 if largest >= 100 else 2 if largest >= 10 else 3


def _write_number(value: float, decimals: int) -> str:
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    if decimals == _SCIENTIFIC and value != 0:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}×10{str(int(exponent)).translate(_SUPERSCRIPTS)}".replace("-", "−")
    decimals = max(decimals, 0)
    if value != 0 and abs(value) < 0.5 * 10**-decimals:
        return f"<{10**-decimals:.{decimals}f}" if value > 0 else f">−{10**-decimals:.{decimals}f}"
    return f"{value:,.{decimals}f}".replace("-", "−")


def _format_number(value: float, decimals: int) -> TableCell:
    if np.isnan(value):
        return TableCell(text=_MISSING, sort="")
    return TableCell(text=_write_number(value, decimals), sort=repr(float(value)))


def _format_interval(low: float, high: float, decimals: int) -> TableCell:
    if np.isnan(low) or np.isnan(high):
        return TableCell(text=_MISSING, sort="")
    return TableCell(text=f"[{_write_number(low, decimals)}, {_write_number(high, decimals)}]", sort=repr(float(low)))


def _format_integer(value: Any) -> TableCell:
    if pd.isna(value):
        return TableCell(text=_MISSING, sort="")
    return TableCell(text=f"{value:,}".replace("-", "−"), sort=str(value))


def _format_text(value: object) -> TableCell:
    text = _MISSING if value is None or value is pd.NA or value != value else str(value)
    anchor = value.anchor if isinstance(value, Link) else ""
    return TableCell(text=text, sort="" if text == _MISSING else text, anchor=anchor)


def _humanise(name: str) -> str:
    return name.replace("_", " ")
