"""A preparation: what turns the columns of a node table into features.

It is fitted to the training rows once, kept with the run as data (JSON, and arrays as safetensors),
and applied unchanged to every table that the model reads later: the mean that fills a hole, the
categories and their order, the origin of dates and the vocabulary of a text are the training's.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from graphcl.errors import RunError, counted, demand
from graphcl.files.arrays import with_digest
from graphcl.files.atomic import write_whole
from graphcl.files.text import read_text

FORMAT = 1
FILE, ARRAYS = "preparation.json", "preparation.safetensors"
NUMBER, CATEGORY, DATE, DURATION, TEXT, VECTOR, AGE, TAGS, VECTORS = KINDS = (
    "number",
    "category",
    "date",
    "duration",
    "text",
    "vector",
    "age",
    "tags",
    "vectors",
)
BESIDE = (TAGS, VECTORS)  # that are no columns of a node table
_BYTES = 1 << 28  # of the JSON: a million columns
FAR = 1.0  # spans of the training's range: a value farther outside than this is far outside

Arrays = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Column:
    """What becomes of one column, or of what stands beside a node table.

    That is a long table of tags, whose rows are a node's id, a name and perhaps a value, or a file
    of vectors, one for each node.

    Attributes:
        name: the column's name in the table; of tags, that of the column of names; of vectors, the
            file's name without its suffix.
        kind: one of `KINDS`.
        features: the names of the features that it becomes, in order.
        fill: what a missing number, date or duration becomes: the training rows' mean, in the
            feature's unit.
        low: the smallest value in the training rows, in the feature's unit.
        high: the largest.
        categories: of a category: the texts, in the features' order; of tags: the names in the
            training rows.
        origin: of a date: seconds since 1970 of the first date in the training rows; of an age:
            the time until which it is counted.
        clock: of a date: whether the hour of the day is a feature; of an age: whether it is counted
            in days, as that of a date.
        missing: missing values in the table that this was fitted to.
        decimal: of a number that texts write with marks: the one before its decimals.
        date_format: of a date: its format, if it is not the usual one.
    """

    name: str
    kind: str = NUMBER
    features: tuple[str, ...] = ()
    fill: float = 0.0
    low: float = 0.0
    high: float = 0.0
    categories: tuple[str, ...] = ()
    origin: float = 0.0
    clock: bool = False
    missing: int = 0
    decimal: str = ""
    date_format: str = ""

    def describe(self) -> str:
        """Says in a few words what becomes of the column."""
        mark = f", with the decimal mark {self.decimal!r}" if self.decimal else ""
        form = f" ({self.date_format})" if self.date_format else ""
        parts = "year, week and day" if self.clock else "year and week"
        width = len(self.features)
        return {
            NUMBER: f"a number{mark}",
            CATEGORY: f"a category: {width} values, one feature each",
            DATE: f"a date{form}: years since the first, and its place in the {parts}",
            DURATION: "a duration, in days",
            AGE: f"the time since then: the logarithm of {'days' if self.clock else 'it'}",
            TEXT: f"text: {width} features (hashed TF-IDF, then SVD)",
            VECTOR: f"a vector of {width} numbers",
            TAGS: f"tags: {counted(width, 'name')}, one feature each",
            VECTORS: f"vectors of {width:,} numbers",
        }[self.kind]


@dataclass(frozen=True)
class Preparation:
    """What becomes of each column of a node table, and of the tables and files beside it.

    Attributes:
        columns: the columns that become features, in the features' order.
        missing: ``zero`` or ``mean``: what fills a hole.
        sparse: whether the features are kept sparse.
        arrays: of columns of text, by name; see `graphcl.tabular.kinds`.
        tags: what becomes of a long table; None if there was none.
        vectors: what becomes of a file of vectors; None if there was none.
    """

    columns: tuple[Column, ...]
    missing: str = "mean"
    sparse: bool = False
    arrays: Arrays = field(default_factory=dict)
    tags: Column | None = None
    vectors: Column | None = None

    @property
    def beside(self) -> list[Column]:
        """What is not a column, in the features' order; its kind is the keyword that names it."""
        return [one for one in (self.tags, self.vectors) if one is not None]

    @property
    def features(self) -> list[str]:
        """The names of all features that come from columns, tags and vectors, in order."""
        return [name for one in (*self.columns, *self.beside) for name in one.features]

    def to_json(self) -> str:
        """Returns everything but the arrays as JSON."""
        about: dict[str, Any] = {"format": FORMAT, "missing": self.missing, "sparse": self.sparse}
        about["columns"] = [_kept(one) for one in self.columns]
        about |= {one.kind: _kept(one) for one in self.beside}
        return json.dumps(about, ensure_ascii=False, allow_nan=False, indent=0)


def _kept(column: Column) -> dict[str, Any]:
    """Returns what differs from the defaults, and the names of features if they do not follow."""
    kept = {one.name: getattr(column, one.name) for one in fields(column)}
    kept |= {"features": () if column.features == _features(kept) else column.features}
    return {one.name: kept[one.name] for one in fields(column) if kept[one.name] != one.default}


def _features(column: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names that features have unless others are given."""
    name, categories = column["name"], column.get("categories", ())
    return tuple(f"{name}={one}" for one in categories) or (str(name),)


def is_far(column: Column, low: float, high: float) -> bool:
    """Returns whether a value lies more than `FAR` spans outside the training's range."""
    span = column.high - column.low
    # A constant column has no span; any other value is as far outside as can be.
    room = FAR * span if span > 0 else abs(column.high)
    return bool(low < column.low - room or high > column.high + room)


def write_preparation(folder: Path, preparation: Preparation) -> None:
    """Writes the preparation into a folder that is not yet a run."""
    write_whole(folder / FILE, preparation.to_json().encode("utf-8", "surrogatepass"))
    if preparation.arrays:
        arrays = {key: np.ascontiguousarray(a) for key, a in preparation.arrays.items()}
        write_whole(folder / ARRAYS, with_digest(safetensors.numpy.save(arrays)))


def read_preparation(run: Path) -> Preparation | None:
    """Returns the preparation of a run; None where it has none. The file may be forged.

    Raises:
        RunError: it is damaged.
    """
    path = run / FILE
    if not path.exists():
        return None
    try:
        about = json.loads(read_text(path, RunError, limit=_BYTES))
        demand(
            about["format"] == FORMAT,
            f"{path}: format {about['format']!r}; this version reads {FORMAT}",
            RunError,
        )
        columns = tuple(_column(one) for one in about["columns"])
        missing, sparse = about["missing"], about["sparse"]
        beside = {kind: _column({**about[kind], "kind": kind}) for kind in BESIDE if kind in about}
    except RunError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({type(error).__name__}: {str(error)[:80]})") from None
    demand(
        missing in ("zero", "mean") and isinstance(sparse, bool),
        f"{path}: damaged (missing or sparse)",
        RunError,
    )
    return Preparation(columns, missing, sparse, _arrays(run, columns), **beside)


def _column(given: Mapping[str, Any]) -> Column:
    lists = {key: tuple(map(str, given[key])) for key in ("features", "categories") if key in given}
    column = Column(**{"features": _features({**given, **lists}), **given, **lists})
    numbers = (column.fill, column.low, column.high, column.origin, column.missing)
    texts = (column.name, column.kind, column.decimal, column.date_format)
    count, distinct = len(column.features), len(set(column.categories))
    expected = {NUMBER: 1, DURATION: 1, AGE: 1, DATE: 7 if column.clock else 5}
    expected |= {CATEGORY: distinct, TAGS: distinct}
    demand(
        all(type(one) is str for one in texts)
        and all(type(one) in (int, float) and math.isfinite(one) for one in numbers)
        and type(column.clock) is bool
        and column.kind in KINDS
        and column.decimal in ("", ",", ".")
        and count == expected.get(column.kind, count) > 0,
        f"column {column.name!r}",
        ValueError,
    )
    return column


def _arrays(run: Path, columns: tuple[Column, ...]) -> Arrays:
    texts = [column for column in columns if column.kind == TEXT]
    if not texts:
        return {}
    from graphcl.files.arrays import read_tensors  # imports torch

    path = run / ARRAYS
    try:
        arrays = {name: tensor.numpy() for name, tensor in read_tensors(path).items()}
    except FileNotFoundError:
        raise RunError(f"{path}: missing; the run prepares text by it") from None
    for column in texts:
        idf, axes = (arrays.get(f"{column.name}/{part}") for part in ("idf", "axes"))
        if idf is None or axes is None or axes.shape != (len(column.features), *idf.shape):
            raise RunError(f"{path}: lacks the arrays of column {column.name!r}")
        demand(
            np.isfinite(idf).all() and np.isfinite(axes).all(),
            f"{path}: column {column.name!r} holds a number that is not finite",
            RunError,
        )
    return dict(arrays)
