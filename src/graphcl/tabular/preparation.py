"""A preparation: what turns the columns of a node table into features.

It is fitted to the training rows once, kept with the run as data (JSON, and arrays as safetensors),
and applied unchanged to every table that the model reads later: the mean that fills a hole, the
categories and their order, the origin of dates and the vocabulary of a text are the training's.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from graphcl.errors import RunError
from graphcl.files.atomic import write_whole
from graphcl.files.text import read_text

FORMAT = 1
WITH_FILES = 2  # the format of a preparation that also has tags or vectors
FILE, ARRAYS = "preparation.json", "preparation.safetensors"
NUMBER, CATEGORY, DATE, DURATION, TIME, TEXT, VECTOR, AGE = KINDS = (
    "number",
    "category",
    "date",
    "duration",
    "time",
    "text",
    "vector",
    "age",
)
_BYTES = 1 << 28  # of the JSON: a million columns
FAR = 1.0  # spans of the training's range: a value farther outside than this is far outside

Arrays = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Column:
    """What becomes of one column.

    Attributes:
        name: the column's name in the table.
        kind: one of `KINDS`.
        features: the names of the features that it becomes, in order.
        fill: what a missing number, date or duration becomes: the training rows' mean, in the
            feature's unit.
        low: the smallest value in the training rows, in the feature's unit.
        high: the largest.
        categories: of a category: the texts, in the features' order.
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
        if self.kind == NUMBER:
            return (
                f"a number, with the decimal mark {self.decimal!r}" if self.decimal else "a number"
            )
        if self.kind == CATEGORY:
            return f"a category: {len(self.categories)} values, one feature each"
        if self.kind == DATE:
            parts = "year, week and day" if self.clock else "year and week"
            form = f" ({self.date_format})" if self.date_format else ""
            return f"a date{form}: years since the first, and its place in the {parts}"
        if self.kind == DURATION:
            return "a duration, in days"
        if self.kind == AGE:
            return f"the time since then: the logarithm of {'days' if self.clock else 'it'}"
        if self.kind == TIME:
            return "a time of day: its place on the clock, two features"
        if self.kind == TEXT:
            return f"text: {len(self.features)} features (hashed TF-IDF, then SVD)"
        return f"a vector of {len(self.features)} numbers"


@dataclass(frozen=True)
class Tags:
    """What becomes of a long table, whose rows are a node's id, a name and perhaps a value.

    Attributes:
        column: the column of names.
        names: the names in the training rows, in the features' order; others are left out.
        low: the smallest value in the training rows.
        high: the largest.
    """

    column: str
    names: tuple[str, ...]
    low: float = 1.0
    high: float = 1.0

    @property
    def features(self) -> list[str]:
        """The names of the features."""
        return [f"{self.column}={name}" for name in self.names]

    def describe(self) -> str:
        """Says in a few words what becomes of the names."""
        names = "1 name" if len(self.names) == 1 else f"{len(self.names):,} names"
        return f"tags: {names}, one feature each"


@dataclass(frozen=True)
class Vectors:
    """What becomes of a file of vectors, one for each node: its numbers, as they are.

    Attributes:
        name: the file's name without its suffix.
        width: numbers in a vector.
        low: the smallest number in the training rows.
        high: the largest.
    """

    name: str
    width: int
    low: float = 0.0
    high: float = 0.0

    @property
    def features(self) -> list[str]:
        """The names of the features."""
        return [f"{self.name}[{place}]" for place in range(self.width)]

    def describe(self) -> str:
        """Says in a few words what becomes of the vectors."""
        return f"vectors of {self.width:,} numbers"


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
    tags: Tags | None = None
    vectors: Vectors | None = None

    @property
    def beside(self) -> list[tuple[str, Tags | Vectors]]:
        """What is not a column, with the keyword that names it, in the features' order."""
        both = (("tags", self.tags), ("vectors", self.vectors))
        return [(name, one) for name, one in both if one is not None]

    @property
    def features(self) -> list[str]:
        """The names of all features that come from columns, tags and vectors, in order."""
        names = [name for column in self.columns for name in column.features]
        return names + [name for _, one in self.beside for name in one.features]

    def to_json(self) -> str:
        """Returns everything but the arrays as JSON."""
        columns = []
        defaults = {one.name: one.default for one in fields(Column)}
        for column in self.columns:
            kept = {key: v for key, v in asdict(column).items() if v != defaults[key]}
            if kept.get("features") == (column.name,):
                del kept["features"]
            columns.append(kept)
        about: dict[str, Any] = {"format": WITH_FILES if self.beside else FORMAT}
        about |= {"missing": self.missing, "sparse": self.sparse, "columns": columns}
        about |= {name: asdict(one) for name, one in self.beside}
        return json.dumps(about, ensure_ascii=False, allow_nan=False, indent=0)


def is_far(column: Column | Tags | Vectors, low: float, high: float) -> bool:
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
        write_whole(folder / ARRAYS, safetensors.numpy.save(arrays))


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
        if about["format"] not in (FORMAT, WITH_FILES):
            known = f"{FORMAT} and {WITH_FILES}"
            raise RunError(f"{path}: format {about['format']!r}; this version reads {known}")
        columns = tuple(_column(one) for one in about["columns"])
        missing, sparse = about["missing"], about["sparse"]
        tags = _tags(about["tags"]) if "tags" in about else None
        vectors = _vectors(about["vectors"]) if "vectors" in about else None
    except RunError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: damaged ({type(error).__name__}: {str(error)[:80]})") from None
    if missing not in ("zero", "mean") or not isinstance(sparse, bool):
        raise RunError(f"{path}: damaged (missing or sparse)")
    return Preparation(columns, missing, sparse, _arrays(run, columns), tags, vectors)


def _column(given: Mapping[str, Any]) -> Column:
    lists = {key: tuple(map(str, given[key])) for key in ("features", "categories") if key in given}
    column = Column(**{"features": (str(given["name"]),), **given, **lists})
    numbers = (column.fill, column.low, column.high, column.origin, column.missing)
    written = column.decimal in ("", ",", ".") and type(column.date_format) is str
    if column.kind not in KINDS or type(column.clock) is not bool or not written:
        raise ValueError(f"column {column.name!r}")
    _require_finite(f"column {column.name!r}", *numbers)
    if column.kind == CATEGORY and len(column.categories) != len(column.features):
        raise ValueError(f"column {column.name!r} has categories without features")
    expected = {NUMBER: 1, DURATION: 1, AGE: 1, TIME: 2, DATE: 7 if column.clock else 5}.get(
        column.kind
    )
    if not column.features or expected not in (None, len(column.features)):
        raise ValueError(f"column {column.name!r} has {len(column.features)} features")
    return column


def _tags(given: Mapping[str, Any]) -> Tags:
    tags = Tags(**{**given, "names": tuple(map(str, given["names"]))})
    _require_finite("tags", tags.low, tags.high)
    if type(tags.column) is not str or not tags.names or len(set(tags.names)) < len(tags.names):
        raise ValueError("tags: none, or one twice")
    return tags


def _vectors(given: Mapping[str, Any]) -> Vectors:
    vectors = Vectors(**given)
    _require_finite("vectors", vectors.low, vectors.high)
    if type(vectors.name) is not str or type(vectors.width) is not int or vectors.width < 1:
        raise ValueError("vectors")
    return vectors


def _require_finite(what: str, *numbers: Any) -> None:
    if not all(type(one) in (int, float) and math.isfinite(one) for one in numbers):
        raise ValueError(f"{what} has a number that is not finite")


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
        if not (np.isfinite(idf).all() and np.isfinite(axes).all()):
            raise RunError(f"{path}: column {column.name!r} holds a number that is not finite")
    return dict(arrays)
