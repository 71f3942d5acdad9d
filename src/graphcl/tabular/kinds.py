r"""Columns that are not numbers: what each of them is, and the features that it becomes.

Where the meaning is plain, nobody need say it: text with few values is a category, a timestamp is a
date. Anything else is a problem that the caller settles with an option.

A text becomes counts of its words and of pairs of words that follow each other, in `WORDS` places
by a hash, so that no vocabulary is kept. Counts are dampened, :math:`1 + \log n`, weighted by
:math:`\log\frac{1 + N}{1 + n_w} + 1` and divided by the row's length. The features are the
products with the leading axes of the training rows.

A few rows of a node table are prepared in milliseconds as the training prepared its table
(`prepare_rows`). They come as plain values, from JSON or Arrow: a number, a text, a truth value, a
list of numbers, or None where a value is missing. Nothing is decided by them
(`graphcl.tabular.fitting` does the same for whole tables). Dates and durations are read by DuckDB,
as in tables.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Doubles, Floats, Integers
from graphcl.errors import GraphError, demand, option, suggestion
from graphcl.tabular import cells
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.preparation import (
    CATEGORY,
    DATE,
    DURATION,
    NUMBER,
    TEXT,
    VECTOR,
    Arrays,
    Column,
    Preparation,
)
from graphcl.tabular.report import Problem, short
from graphcl.tabular.sources import Source

MAX_CATEGORIES = 1000
FEW_CATEGORIES = 50  # so many, on two rows each, are a category without being asked
FEW_MISSING = 0.2  # of a column's rows: so many missing values are filled without being asked
PROSE = 3  # words in a cell, on average: more is text to read, less is a name or a code
DAY, YEAR = 86400.0, 365.2425 * 86400.0
TRAINING = "graphcl training row"  # a column of tables of the session
WORDS = 1 << 14
FEATURES = 64
RANK = 1e-10  # squared singular values below this share of the largest are none
FIT_ROWS = 50_000  # texts that the axes are fitted to, evenly spaced; more would change little


@dataclass(frozen=True)
class NonNumericColumn:
    """A column that is not numbers, in a table of the session that has ``rowid``.

    Attributes:
        duck: the session.
        source: the node table.
        name: the column.
        table: the session's table.
        fitted: whether statistics are of the rows that say so in the column `TRAINING`.
    """

    duck: Duck
    source: Source
    name: str
    table: str
    fitted: bool = False

    @property
    def _absent(self) -> str:
        return cells.absent(self.source, self.name)

    @property
    def _seen(self) -> str:
        return quoted(TRAINING) if self.fitted else "true"

    def _row(self, sql: str) -> tuple[Any, ...]:
        return self.duck.row(f"SELECT {sql} FROM {quoted(self.table)}", where=self.source.name)

    def missing(self) -> tuple[int, int]:
        """Returns the numbers of rows and of missing values."""
        rows, missing = self._row(f"count(*), count(*) FILTER ({self._absent})")
        return int(rows), int(missing)

    def first(self, condition: str) -> tuple[int, str]:
        """Returns the number, from 1, and the text of the first cell where a condition holds."""
        there = f"NOT {self._absent} AND ({condition})"
        found = self.duck.first(self.table, there, quoted(self.name), where=self.source.name)
        return found[0] if found else (1, "")

    # What it is

    def plain_kind(self) -> str:
        """Returns the kind if the meaning is plain, or an empty string."""
        typed = cells.kind_of_type(self.source.columns[self.name])
        if typed != "text":
            return typed
        cell = f"{quoted(self.name)}::VARCHAR"
        there, dates, lengths, distinct = self._row(
            f"count(*) FILTER (NOT {self._absent}), "
            f"count({cells.date(self.source, self.name)}), "
            f"count({cells.duration(self.source, self.name)}), "
            f"count(DISTINCT {cell}) FILTER (NOT {self._absent})"
        )
        if there and dates == there:
            return DATE
        if there and lengths == there:
            return DURATION
        return CATEGORY if 0 < distinct <= min(FEW_CATEGORIES, (there + 1) // 2) else ""

    def problem(self) -> Problem:
        """Says that the column's meaning is not plain, and what to do."""
        name, given = self.name, self.source.columns[self.name]
        if cells.kind_of_type(given) == "":
            return self._wrong(f"column {name!r} is {given[:40]}; leave the column out with")
        row, cell = self.first("true")
        words, distinct = self._row(
            f"avg(len(string_split({quoted(name)}::VARCHAR, ' '))) FILTER (NOT {self._absent}), "
            f"count(DISTINCT {quoted(name)}::VARCHAR)"
        )
        start = f"{self.source.name}: column {name!r} is text (row {row}: {short(cell)})"
        leave = f"leave the column out with {option('ignore', name)}"
        if (words or 0) >= PROSE:
            how = f"read it with {option('text', name)}, or {leave}"
            return Problem(f"{start}, {distinct:,} different ones: {how}", ("text", name))
        if distinct <= min(MAX_CATEGORIES, (self.missing()[0] + 1) // 2):
            how = f"encode it with {option('one_hot', name)}, or {leave}"
            return Problem(f"{start}; features are numbers: {how}", ("one_hot", name))
        how = f"encode it with {option('one_hot', name)}, or read it with {option('text', name)}"
        return Problem(
            f"{start}, {distinct:,} different values; features are numbers: {leave}, {how}",
            ("ignore", name),
        )

    # What it becomes

    def fit(self, kind: str, missing: int) -> tuple[Column, dict[str, Floats]] | Problem:
        """Returns what the column becomes, with the arrays of a text, or the problem with it."""
        fits = {CATEGORY: self._fit_category, TEXT: self._fit_text, VECTOR: self._fit_vector}
        return fits.get(kind, self._fit_moment)(
            Column(self.name, kind, (self.name,), missing=missing)
        )

    def _fit_category(self, column: Column) -> tuple[Column, dict[str, Floats]] | Problem:
        name, found = self.name, self.categories(self._seen)
        wrong = "" if found else "has no values; leave it out"
        if len(found) > MAX_CATEGORIES:
            most = f"has more than {MAX_CATEGORIES:,} categories"
            wrong = f"{most}; group them first, or leave it out"
        if wrong:
            return self._wrong(f"{option('one_hot')}: column {name!r} {wrong} with")
        names = tuple(f"{name}={category}" for category in found)
        return replace(column, features=names, categories=tuple(found)), {}

    def _wrong(self, what: str) -> Problem:
        """Returns a problem that is settled by leaving the column out."""
        leave = ("ignore", self.name)
        return Problem(f"{self.source.name}: {what} {option(*leave)}", leave)

    def categories(self, condition: str = "true") -> list[str]:
        """Returns the different texts in order, one more than is allowed at most."""
        found = self.duck.rows(
            f"SELECT DISTINCT {quoted(self.name)}::VARCHAR FROM {quoted(self.table)} WHERE NOT "
            f"{self._absent} AND {condition} ORDER BY 1 LIMIT {MAX_CATEGORIES + 1}",
            where=self.source.name,
        )
        return [category for (category,) in found]

    def _fit_text(self, column: Column) -> tuple[Column, dict[str, Floats]] | Problem:
        places = np.arange(self.missing()[0])
        if self.fitted:
            (places,) = self.duck.arrays(
                f"SELECT rowid FROM {quoted(self.table)} WHERE {self._seen} ORDER BY rowid"
            )
        rows = len(places)
        if rows > FIT_ROWS:
            places = places[np.linspace(0, rows - 1, FIT_ROWS).astype(np.int64)]
        parts = ((first, batch.column(0)) for first, batch in self.batches(TEXT))
        texts = spaced(parts, places)
        if not any(texts):
            empty = f"column {self.name!r} has no values; leave it out with"
            return self._wrong(f"{option('text')}: {empty}")
        idf, axes = fit_text(texts, rows)
        names = tuple(f"{self.name}~{place}" for place in range(len(axes)))
        arrays = {f"{self.name}/idf": idf, f"{self.name}/axes": axes}
        return replace(column, features=names), arrays

    def _fit_vector(self, column: Column) -> tuple[Column, dict[str, Floats]] | Problem:
        low, high = self._row(f"min(len({quoted(self.name)})), max(len({quoted(self.name)}))")
        if not high or low != high:
            found = "no values" if not high else f"vectors of {low} to {high} numbers"
            same = "all need the same length: leave it out with"
            return self._wrong(f"column {self.name!r} has {found}; {same}")
        names = tuple(f"{self.name}[{place}]" for place in range(high))
        return replace(column, features=names), {}

    def _fit_moment(self, column: Column) -> tuple[Column, dict[str, Floats]] | Problem:
        kind, sql = column.kind, self._moment(column.kind)
        wrong = f"{sql} IS NULL"
        (count,) = self._row(f"count(*) FILTER (NOT {self._absent} AND {wrong})")
        if count:
            row, cell = self.first(wrong)
            form = self.source.dates.get(self.name, "2016-03-20")
            how = f"say how its dates are written, such as {option('date_format', '%d/%m/%Y')}, or "
            if self.name in self.source.dates:
                how = "correct it, or "
            what = f"date such as {form}; {how}" if kind == DATE else "duration; "
            cell = f"row {row}, column {self.name!r}: {short(cell)}"
            return self._wrong(f"{cell} is not a {what}leave the column out with")
        low, high, mean, clock = self._row(
            f"min({sql}) FILTER ({self._seen}), max({sql}) FILTER ({self._seen}), "
            f"avg({sql}) FILTER ({self._seen}), coalesce(bool_or({sql} % 86400 <> 0), false)"
        )
        low, high, mean = (float(one or 0) for one in (low, high, mean))
        name = self.name
        if kind == DURATION:
            scaled = (mean / DAY, low / DAY, high / DAY)
            return replace(column, fill=scaled[0], low=scaled[1], high=scaled[2]), {}
        parts = ("year", "week", "day") if clock else ("year", "week")
        cyclic = [f"{name} ({part}, {wave})" for part in parts for wave in ("sin", "cos")]
        column = replace(column, features=(name, *cyclic), clock=bool(clock), origin=low)
        return replace(column, fill=(mean - low) / YEAR, high=(high - low) / YEAR), {}

    def _moment(self, kind: str) -> str:
        return (cells.date if kind == DATE else cells.duration)(self.source, self.name)

    def expression(self, kind: str) -> str:
        """Returns the SQL expression that `encode` takes the values of."""
        if kind in (CATEGORY, TEXT):
            return cells.text(self.source, self.name)
        return f"{quoted(self.name)}::FLOAT[]" if kind == VECTOR else self._moment(kind)

    def batches(self, kind: str) -> Iterator[tuple[int, Any]]:
        """Yields the first row and batches of the column."""
        query = f"SELECT {self.expression(kind)} FROM {quoted(self.table)} ORDER BY rowid"
        yield from self.duck.numbered(query, where=self.source.name, rows=1 << 15)


def encode(column: Column, values: Any, arrays: Arrays) -> Floats:
    """Returns the features of a column, float32 ``[rows, features]``.

    A missing number is the training's mean; a missing or unknown category, text, vector or place on
    a circle has zeros. A number that is missing in a vector stays NaN, which is refused.
    """
    if column.kind == TEXT:
        idf, axes = arrays[f"{column.name}/idf"], arrays[f"{column.name}/axes"]
        return text_features(values.to_pylist(), idf, axes)
    encoders = {CATEGORY: _category, VECTOR: _vector, DATE: _date, DURATION: _duration}
    return encoders[column.kind](column, values)


def _duration(column: Column, values: Any) -> Floats:
    days = values.to_numpy(zero_copy_only=False).astype(np.float64) / DAY
    return np.asarray(np.where(np.isnan(days), column.fill, days)[:, None], np.float32)


def _category(column: Column, values: Any) -> Floats:
    import pyarrow
    import pyarrow.compute

    known = pyarrow.array(column.categories, pyarrow.string())
    found = pyarrow.compute.index_in(values.cast(pyarrow.string()), value_set=known)
    codes = found.fill_null(-1).to_numpy(zero_copy_only=False)
    return np.asarray(codes[:, None] == np.arange(len(column.categories)), np.float32)


def _vector(column: Column, values: Any) -> Floats:
    block = np.zeros((len(values), len(column.features)), np.float32)
    there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    flat = values.flatten().to_numpy(zero_copy_only=False)
    block[there] = flat.reshape(len(there), block.shape[1])
    return block


def _date(column: Column, values: Any) -> Floats:
    seconds = values.to_numpy(zero_copy_only=False).astype(np.float64)
    years = (seconds - column.origin) / YEAR
    parts = [np.where(np.isnan(years), column.fill, years)]
    for period in (YEAR, 7 * DAY, DAY) if column.clock else (YEAR, 7 * DAY):
        parts += _circle(seconds, period)
    return np.stack(parts, axis=1).astype(np.float32)


def _circle(seconds: Doubles, period: float) -> list[Doubles]:
    """Returns sine and cosine of the place in a period; zeros where it is not known."""
    angle = 2 * np.pi * (seconds % period) / period
    return [np.where(np.isnan(angle), 0, wave(angle)) for wave in (np.sin, np.cos)]


def counts_of(texts: Iterable[str | None]) -> scipy.sparse.csr_array:
    """Returns counts of words and pairs of words, ``[texts, WORDS]``."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(
        n_features=WORDS, alternate_sign=False, norm=None, ngram_range=(1, 2), dtype=np.float32
    )
    return scipy.sparse.csr_array(hashing.transform([text or "" for text in texts]))


def fit_text(texts: list[str | None], rows: int) -> tuple[Floats, Floats]:
    """Returns the weights of words and the axes ``[features, WORDS]``.

    Args:
        texts: those of the training rows, or evenly spaced ones among them.
        rows: number of training rows; with few of them there are fewer features.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    counts = counts_of(texts)
    idf = TfidfTransformer(sublinear_tf=True).fit(counts).idf_.astype(np.float32)
    weighted = _weighted(counts, idf)
    places = np.unique(counts.indices)  # those without a word take no part
    width = min(FEATURES, rows - 1, weighted.shape[0] - 1, len(places) - 1)
    if width < 1:
        axes = np.zeros((1, WORDS), np.float32)
        axes[0, places[:1]] = 1
        return idf, axes
    found_axes = leading_axes(weighted[:, places].astype(np.float64), width)
    axes = np.zeros((len(found_axes), WORDS), np.float32)
    axes[:, places] = found_axes
    return idf, axes


def leading_axes(rows: Any, width: int) -> Doubles:
    """Returns the leading right singular vectors of a sparse matrix, ``[at most width, columns]``.

    The same matrix gives the same axes in every call. (ARPACK goes on from vectors at random where
    the rank is below `width`, and nothing seeds them.) Axes beyond the rank are left out. The
    largest entry of an axis is positive.
    """
    from sklearn.utils.extmath import randomized_svd

    _, sizes, axes = randomized_svd(
        rows, width, n_oversamples=64, n_iter=7, power_iteration_normalizer="QR", random_state=0
    )
    axes = axes[sizes**2 > RANK * sizes[0] ** 2]
    largest = axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)]
    return np.asarray(axes * np.where(largest < 0, -1, 1)[:, None])


def text_features(texts: Iterable[str | None], idf: Floats, axes: Floats) -> Floats:
    """Returns the features ``[texts, features]``; a text without a known word has zeros."""
    return np.asarray(_weighted(counts_of(texts), idf) @ axes.T, dtype=np.float32)


def _weighted(counts: scipy.sparse.csr_array, idf: Floats) -> scipy.sparse.csr_array:
    from sklearn.feature_extraction.text import TfidfTransformer

    weighing = TfidfTransformer(sublinear_tf=True)
    weighing.idf_ = idf
    return scipy.sparse.csr_array(weighing.transform(counts))


def spaced(batches: Iterator[tuple[int, Any]], rows: Integers) -> list[str | None]:
    """Returns the texts in the rows, which ascend, from batches of a column."""
    chosen: list[str | None] = []
    for first, column in batches:
        inside = rows[(rows >= first) & (rows < first + len(column))] - first
        chosen += column.take(inside).to_pylist()
    return chosen


# A few rows

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
        lists = [_numbers(column, place, value) for place, value in enumerate(values)]
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


def _numbers(column: Column, place: int, value: Any) -> list[float] | None:
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
