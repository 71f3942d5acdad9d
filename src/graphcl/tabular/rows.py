"""A few rows of a node table, prepared in milliseconds as the training prepared its table.

Rows come as plain values, from JSON or Arrow: a number, a text, a truth value, a list of numbers,
or None where a value is missing. Nothing is decided by them (`graphcl.tabular.fitting` does the
same for whole tables). Dates and durations are read by DuckDB, as in tables.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, time, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, demand, option, suggestion
from graphcl.tabular import cells
from graphcl.tabular.duck import Duck
from graphcl.tabular.kinds import encode
from graphcl.tabular.preparation import (
    CATEGORY,
    DATE,
    DURATION,
    NUMBER,
    TEXT,
    VECTOR,
    Column,
    Preparation,
)
from graphcl.tabular.report import short
from graphcl.tabular.sources import Source

Floats = npt.NDArray[np.float32]
_LARGEST = float(np.finfo(np.float32).max)
_MOMENTS = {
    DATE: (date, cells.date, "2026-05-17"),
    DURATION: (timedelta, cells.duration, "3 days"),
}
_TEXTS = {"true": 1.0, "false": 0.0} | dict.fromkeys(cells.NO_VALUE, math.nan)


def prepare_rows(rows: Sequence[Mapping[str, Any]], preparation: Preparation, width: int) -> Floats:
    """Returns the features of rows, ``[rows, width]``.

    Args:
        rows: a value for each column that the model was trained on; None is a missing value.
        preparation: what turns columns into features.
        width: features of the graph.

    Raises:
        GraphError: a column is missing or unknown, or a value is not what the training had.
    """
    if preparation.beside:
        name = option(preparation.beside[0].kind)
        raise GraphError(
            f"the model was trained with {name}, which columns do not have; give features"
        )
    demand(
        len(preparation.features) == width,
        f"{width - len(preparation.features)} of the model's features are computed from edges; "
        "give features",
    )
    names = [column.name for column in preparation.columns]
    for place, row in enumerate(rows):
        for name in (one for one in row if one not in names):
            known = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
            near = suggestion(name, names) or f"; the model was trained on {known}"
            raise GraphError(f"node {place}: unknown column {short(name)}{near}")
        for name in (one for one in names if one not in row):
            raise GraphError(
                f"node {place}: has no column {name!r}, which the model was trained on; null "
                "is a missing value"
            )
    parts = [
        _features(column, [row[column.name] for row in rows], preparation)
        for column in preparation.columns
    ]
    x = np.concatenate(parts, axis=1).astype(np.float32, copy=False)
    for place, feature in np.argwhere(~np.isfinite(x)):
        raise GraphError(f"node {place}: {preparation.features[feature]!r} does not fit in float32")
    return x


def _features(column: Column, values: list[Any], preparation: Preparation) -> Floats:
    """Returns what a column becomes, ``[rows, features]``."""
    if column.kind == NUMBER:
        numbers = [_number(column, place, value) for place, value in enumerate(values)]
        return np.array(numbers, np.float64).astype(np.float32)[:, None]
    import pyarrow

    if column.kind in (CATEGORY, TEXT):
        texts = [_text(column, place, value) for place, value in enumerate(values)]
        return encode(column, pyarrow.array(texts, pyarrow.string()), preparation.arrays)
    if column.kind == VECTOR:
        lists = [_vector(column, place, value) for place, value in enumerate(values)]
        return encode(column, pyarrow.array(lists, pyarrow.list_(pyarrow.float32())), {})
    return encode(column, _seconds(column, values), {})


def _wrong(column: Column, place: int, value: Any, what: str) -> GraphError:
    return GraphError(f"node {place}, column {column.name!r}: {short(str(value))} is {what}")


def _number(column: Column, place: int, value: Any) -> float:
    """Returns a number; a text may hold one, as in a file without types."""
    if isinstance(value, str):
        cell = plain = value.strip().lower()
        if column.decimal:
            other = cells.MARKS[1 - cells.MARKS.index(column.decimal)]
            plain = cell.replace(other, "").replace(column.decimal, ".")
        with suppress(ValueError):
            value = _TEXTS[cell] if cell in _TEXTS else float(plain.replace("_", "?"))
    number = math.nan if value is None else value
    if not isinstance(number, int | float):
        raise _wrong(column, place, value, "not a number")
    if abs(number) > _LARGEST:
        raise _wrong(column, place, value, "outside the range of float32")
    return column.fill if math.isnan(number) else float(number)


def _text(column: Column, place: int, value: Any) -> str | None:
    """Returns a text as DuckDB would write the value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float | date | time | timedelta):
        raise _wrong(column, place, value, f"not a {column.kind}")
    return str(value)


def _vector(column: Column, place: int, value: Any) -> list[float] | None:
    width = len(column.features)
    if value is None:
        return None
    numbers = isinstance(value, list) and all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in value
    )
    if not numbers or len(value) != width or not all(abs(one) <= _LARGEST for one in value):
        raise _wrong(column, place, value, f"not a list of {width} numbers")
    return [float(one) for one in value]


def _seconds(column: Column, values: list[Any]) -> Any:
    """Returns seconds of dates, or durations, which DuckDB reads from texts."""
    import pyarrow

    kind, read, example = _MOMENTS[column.kind]
    texts: list[str | None] = []
    for place, value in enumerate(values):
        if value is not None and not isinstance(value, str | kind):
            raise _wrong(column, place, value, f"not a {column.kind}, such as {example!r}")
        if isinstance(value, timedelta):
            value = f"{value.total_seconds():.6f} seconds"
        texts.append(None if value is None else str(value))
    table = pyarrow.table({"cell": pyarrow.array(texts, pyarrow.string())})
    dates = {"cell": column.date_format} if column.date_format else {}
    with Duck() as duck:
        relation = duck.register("cells", table)
        source = Source("columns", relation, {"cell": "VARCHAR"}, untyped=True, dates=dates)
        picked = f"{read(source, 'cell')}, {cells.absent(source, 'cell')}"
        found = duck.rows(f"SELECT {picked} FROM {relation}", where="columns")
    for place, (second, missing) in enumerate(found):
        if second is None and not missing:
            what = f"not a {column.kind}, such as {example!r}"
            raise _wrong(column, place, values[place], what)
    return pyarrow.array([one for one, _ in found], pyarrow.float64())
