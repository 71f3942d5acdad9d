"""Turns the columns of a node table into features, labels and splits.

Numbers become features unchanged. Text is refused, or one-hot encoded on request. A missing value
is an error that names its row and column, unless the caller asks to fill missing values in.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.tabular.columns import LABELS, SPLITS
from graphcl.tabular.duck import Duck, literal, quoted
from graphcl.tabular.options import TableOptions
from graphcl.tabular.sources import Source

MAX_CATEGORIES = 1000
_NO_VALUE = ("", "na", "n/a", "nan", "null", "none", "<na>", "-", "?")
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "BOOLEAN")


@dataclass(frozen=True)
class Feature:
    """A column that becomes one feature, or one per category.

    Attributes:
        column: the column's name.
        sql: an expression over ``node_rows``: a number, or the text of a category.
        categories: the categories of a one-hot encoded column, or None.
    """

    column: str
    sql: str
    categories: tuple[str, ...] | None = None

    @property
    def names(self) -> list[str]:
        """The names of the features that the column becomes."""
        if self.categories is None:
            return [self.column]
        return [f"{self.column}={category}" for category in self.categories]


class NodeFeatures:
    """The features of a table ``node_rows``.

    Args:
        duck: the session.
        source: the table that ``node_rows`` was read from.
        options: how to fill in missing values, and which features to make.
        used: columns that are not features: id, label, split and ignored ones.
        one_hot: columns to encode.
    """

    def __init__(
        self,
        duck: Duck,
        source: Source,
        options: TableOptions,
        *,
        used: set[str],
        one_hot: Sequence[str],
    ) -> None:
        self._duck, self._source = duck, source
        self._missing, self._like = options.missing, options.like
        self.filled = self.unknown = 0
        columns = [name for name in source.columns if name not in used]
        if self._like:
            columns = self._columns_like(columns, one_hot)
        else:
            for name in columns:
                self._refuse_leak(name)
        plain = [name for name in columns if name not in one_hot]
        numeric = {feature.column: feature for feature in self._numeric(plain)}
        encoded = {name: self._one_hot(name) for name in columns if name in one_hot}
        self.features = [(numeric | encoded)[name] for name in columns]
        self.names = [name for feature in self.features for name in feature.names]

    def batches(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yields blocks ``[rows, features]`` in the order of the table."""
        if not self.features:
            return
        picked = ", ".join(f"{feature.sql} AS f{n}" for n, feature in enumerate(self.features))
        first = 0
        query = f"SELECT {picked} FROM node_rows ORDER BY rowid"
        for batch in self._duck.batches(query, where=self._source.name):
            block = np.empty((batch.num_rows, len(self.names)), dtype=np.float32)
            place = 0
            for number, feature in enumerate(self.features):
                width = len(feature.names)
                _fill(block[:, place : place + width], batch.column(number), feature)
                place += width
            self._check_finite(block, first)
            first += batch.num_rows
            yield block

    def _columns_like(self, columns: list[str], one_hot: Sequence[str]) -> list[str]:
        """Returns the columns that the wanted features come from, in the features' order."""
        wanted: dict[str, None] = {}
        for name in self._like:
            encoded = [column for column in one_hot if name.startswith(f"{column}=")]
            column = encoded[0] if encoded else name
            if column not in columns:
                raise GraphError(
                    f"{self._source.name}: has no column {column!r}, which the model was trained on"
                )
            wanted[column] = None
        return list(wanted)

    def _refuse_leak(self, name: str) -> None:
        """Refuses a column that looks like a label or a split: as a feature it would leak."""
        for option, known in (("label", LABELS), ("split", SPLITS)):
            if name.lower() in known:
                raise GraphError(
                    f"{self._source.name}: column {name!r} would become a feature, but is named "
                    f"like a {option}: pass --{option} {_shell(name)}, or --ignore {_shell(name)}"
                )

    def _numeric(self, names: list[str]) -> list[Feature]:
        """Returns the features of numeric columns; refuses other columns."""
        if not names:
            return []
        values = {name: self._value(name) for name in names}
        # One pass over the table for all columns: missing values, numbers and mean of each.
        aggregates = [
            f"count(*) FILTER ({self._absent(name)}), count({values[name]}), avg({values[name]})"
            for name in names
        ]
        rows, *found = self._duck.row(
            f"SELECT count(*), {', '.join(aggregates)} FROM node_rows", where=self._source.name
        )
        features, missing = [], []
        for name, absent, numbers, mean in zip(
            names, found[::3], found[1::3], found[2::3], strict=True
        ):
            self._check_kind(name, rows, absent, numbers)
            if absent:
                missing.append((name, absent))
            filling = 0.0 if self._missing == "zero" else mean
            sql = f"coalesce({values[name]}, {filling!r})" if absent else values[name]
            features.append(Feature(name, sql))
        if missing:
            self._report_missing(missing)
        return features

    def _check_kind(self, name: str, rows: int, absent: int, numbers: int) -> None:
        where, advice = self._source.name, f"leave the column out with --ignore {_shell(name)}"
        if absent == rows and rows > 0:
            raise GraphError(f"{where}: column {name!r} has no values; {advice}")
        if absent + numbers == rows:
            return
        # A column that is mostly numbers has a typing error; any other is text.
        found = self._duck.row(
            f"SELECT rowid, {quoted(name)}::VARCHAR FROM node_rows WHERE NOT {self._absent(name)} "
            f"AND {self._value(name)} IS NULL ORDER BY rowid LIMIT 1"
        )
        if numbers >= (rows - absent) / 2:
            raise GraphError(
                f"{where}: row {found[0] + 1}, column {name!r}: {_short(found[1])} is not a "
                f"number; correct it, or {advice}"
            )
        raise GraphError(
            f"{where}: column {name!r} is text (row {found[0] + 1}: {_short(found[1])}); features "
            f"are numbers: encode it with --one-hot {_shell(name)}, or {advice}"
        )

    def _report_missing(self, missing: list[tuple[str, int]]) -> None:
        total = sum(count for _, count in missing)
        if self._missing != "refuse":
            self.filled += total
            return
        name = missing[0][0]
        (row,) = self._duck.row(
            f"SELECT min(rowid) FROM node_rows WHERE {self._absent(name)}", where=self._source.name
        )
        others = ", ".join(f"{other!r} {count:,}" for other, count in missing[:5])
        raise GraphError(
            f"{self._source.name}: row {row + 1}, column {name!r} is missing; missing values: "
            f"{others}; fill them with --missing zero or --missing mean, or leave a column out "
            f"with --ignore {_shell(name)}"
        )

    def _one_hot(self, name: str) -> Feature:
        text = f"{quoted(name)}::VARCHAR"
        absent = self._absent(name)
        found = self._duck.rows(
            f"SELECT DISTINCT {text} FROM node_rows WHERE NOT {absent} ORDER BY 1 "
            f"LIMIT {MAX_CATEGORIES + 1}",
            where=self._source.name,
        )
        start = f"{name}="
        known = [one.removeprefix(start) for one in self._like if one.startswith(start)]
        self.unknown += sum(category not in known for (category,) in found) if known else 0
        listed = known or [category for (category,) in found]
        if not listed:
            raise GraphError(f"{self._source.name}: --one-hot: column {name!r} has no values")
        if len(listed) > MAX_CATEGORIES:
            raise GraphError(
                f"{self._source.name}: --one-hot: column {name!r} has more than "
                f"{MAX_CATEGORIES:,} categories; group them first, or leave it out with "
                f"--ignore {_shell(name)}"
            )
        (missing,) = self._duck.row(f"SELECT count(*) FROM node_rows WHERE {absent}")
        if missing:
            self._report_missing([(name, missing)])
        sql = f"CASE WHEN {absent} THEN NULL ELSE {text} END"
        return Feature(name, sql, tuple(listed))

    def _absent(self, name: str) -> str:
        """Returns an SQL condition that is true for missing values."""
        column, kind = quoted(name), self._source.columns[name]
        if kind in ("FLOAT", "DOUBLE"):
            return f"({column} IS NULL OR isnan({column}))"
        if not self._source.untyped:
            return f"({column} IS NULL)"
        words = ", ".join(literal(word) for word in _NO_VALUE)
        return f"({column} IS NULL OR lower(trim({column})) IN ({words}))"

    def _value(self, name: str) -> str:
        """Returns an SQL expression for a column's number: NULL if a value is not a number."""
        column, kind = quoted(name), self._source.columns[name]
        if self._source.untyped:
            return (
                f"CASE WHEN {self._absent(name)} THEN NULL ELSE CASE lower(trim({column})) "
                f"WHEN 'true' THEN 1.0::DOUBLE WHEN 'false' THEN 0.0::DOUBLE "
                f"ELSE TRY_CAST({column} AS DOUBLE) END END"
            )
        if any(word in kind for word in _NUMBERS) and not kind.endswith("]"):
            nan = f"isnan({column})" if kind in ("FLOAT", "DOUBLE") else "false"
            return f"CASE WHEN {nan} THEN NULL ELSE {column}::DOUBLE END"
        return "NULL::DOUBLE"

    def _check_finite(self, block: npt.NDArray[np.float32], first: int) -> None:
        if np.isfinite(block).all():
            return
        row, place = (int(index) for index in np.argwhere(~np.isfinite(block))[0])
        raise GraphError(
            f"{self._source.name}: row {first + row + 1}, column {self.names[place]!r}: "
            f"{block[row, place]} does not fit in a float32 feature"
        )


def _fill(block: npt.NDArray[np.float32], column: Any, feature: Feature) -> None:
    if feature.categories is None:
        with np.errstate(over="ignore"):
            block[:, 0] = column.to_numpy(zero_copy_only=False)
        return
    import pyarrow
    import pyarrow.compute

    found = pyarrow.compute.index_in(column, value_set=pyarrow.array(feature.categories))
    codes = found.fill_null(-1).to_numpy(zero_copy_only=False)
    block[...] = codes[:, None] == np.arange(len(feature.categories))


def read_labels(
    duck: Duck, source: Source, name: str
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Returns a class number per row (−1 if there is none) and the names of the classes.

    Integers 0 … C − 1 are the class numbers; other values are numbered in sorted order.
    """
    column = quoted(name)
    empty = f"{column} IS NULL OR trim({column}::VARCHAR) = ''"
    whole = f"TRY_CAST({column} AS BIGINT)"
    text_only = source.columns[name] == "VARCHAR" and not source.untyped
    numbers, values, low, high = duck.row(
        f"SELECT bool_and({whole} IS NOT NULL AND {whole} = TRY_CAST({column} AS DOUBLE)), "
        f"count(DISTINCT {whole}) FILTER ({whole} >= 0), "
        f"min({whole}), max({whole}) FROM node_rows WHERE NOT ({empty})",
        where=source.name,
    )
    if numbers is None:
        raise GraphError(f"{source.name}: --label: column {name!r} has no values")
    absent, order, kept = empty, f"{column}::VARCHAR", False
    if numbers and not text_only and low >= -1:
        absent, order, kept = f"{empty} OR {whole} = -1", whole, high + 1 == values
    duck.run(
        "CREATE OR REPLACE TABLE classes AS SELECT c::VARCHAR AS name, "
        "row_number() OVER (ORDER BY c) - 1 AS number FROM "
        f"(SELECT DISTINCT {order} AS c FROM node_rows WHERE NOT ({absent}))",
        where=source.name,
    )
    query = (
        f"SELECT coalesce(number, -1) FROM (SELECT rowid AS place, CASE WHEN {absent} THEN NULL "
        f"ELSE ({order})::VARCHAR END AS c FROM node_rows) LEFT JOIN classes ON c = classes.name "
        "ORDER BY place"
    )
    parts = [batch.column(0).to_numpy() for batch in duck.batches(query, where=source.name)]
    listed = [] if kept else duck.rows("SELECT name FROM classes ORDER BY number")
    return np.concatenate(parts).astype(np.int64), tuple(name for (name,) in listed)


def read_split(duck: Duck, source: Source, name: str) -> dict[str, npt.NDArray[np.bool_]]:
    """Returns the masks of a column of train, val and test; an empty cell is in no mask."""
    words = {
        "train_mask": ("train", "training"),
        "val_mask": ("val", "valid", "validation", "dev"),
        "test_mask": ("test", "testing"),
    }
    column = f"lower(trim({quoted(name)}::VARCHAR))"
    known = [word for group in words.values() for word in group]
    none = ("", "none", "unused")
    listed = ", ".join(literal(word) for word in (*known, *none))
    wrong = duck.rows(
        f"SELECT rowid, {quoted(name)}::VARCHAR FROM node_rows WHERE {column} NOT IN ({listed}) "
        "ORDER BY rowid LIMIT 1",
        where=source.name,
    )
    if wrong:
        raise GraphError(
            f"{source.name}: row {wrong[0][0] + 1}, column {name!r}: {_short(wrong[0][1])} is not "
            "a split; known: train, val, test, or an empty cell"
        )
    masks = {}
    for mask, group in words.items():
        chosen = ", ".join(literal(word) for word in group)
        query = f"SELECT coalesce({column} IN ({chosen}), false) FROM node_rows ORDER BY rowid"
        parts = [batch.column(0).to_numpy(zero_copy_only=False) for batch in duck.batches(query)]
        masks[mask] = np.concatenate(parts).astype(np.bool_)
    return masks


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _shell(name: str) -> str:
    return f"'{name}'" if not name.isidentifier() else name
