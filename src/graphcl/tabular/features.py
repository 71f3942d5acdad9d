"""The features of nodes, made in blocks from columns and the tables beside them: dense, or sparse.

Features have up to three parts, side by side: those of the node table's columns (or of a matrix),
those of tags, and vectors.

Columns of numbers are read once, looked at, and kept on disk until it is known what they become.

A table may have ten thousand columns. It is read in blocks: some columns at a time where the format
keeps columns apart (Parquet, a database), and few rows at a time where it does not (CSV). Memory
depends on neither the number of rows nor that of columns.

Whether a column holds numbers is known only after its last row. So the values of a first pass go to
Arrow files as float32, compressed, because wide tables are mostly zeros. The features are made from
these files, and the table itself is not parsed a second time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Array, Booleans, Doubles, Floats, Integers
from graphcl.errors import GraphError
from graphcl.store.writer import ArrayWriter
from graphcl.tabular.cells import is_text, number, plain
from graphcl.tabular.duck import Duck, literal, quoted
from graphcl.tabular.kinds import NonNumericColumn, encode
from graphcl.tabular.preparation import CATEGORY, NUMBER, Column, Preparation
from graphcl.tabular.report import ColumnOutcome
from graphcl.tabular.sources import Source

BLOCK_COLUMNS = 256  # of a format that keeps columns apart; each has buffers of its own
TEXT_COLUMNS = 2048  # of a text file, every line of which is read anyway
BLOCK_VALUES = 1 << 21  # values in a batch: 16 MB of float64
_LEAST_ROWS = 2048  # DuckDB works on as many at a time
SPARSE_WIDTH = 512  # features; with fewer, features are dense whatever they hold
SPARSE_SHARE = 0.1  # of all values that are not zero: with more, features are dense
_SORTED = 1 << 22  # entries that are sorted at a time
_LARGEST = float(np.finfo(np.float32).max)


def kept(duck: Duck, source: Source) -> Source:
    """Returns a table whose rows come in the same order each time.

    A query may return its rows in another order the next time, so its result is kept in the
    session; a wide one in a file, as a table of DuckDB's own would not hold it.
    """
    if source.stable:
        return source
    name = "copy_once" if "node_copy" in source.relation else "node_copy"
    if len(source.columns) <= BLOCK_COLUMNS:
        duck.run(f"CREATE TABLE {name} AS FROM {source.relation}", where=source.name)
        return replace(source, relation=name, stable=True)
    file = literal(str(duck.folder / f"{name}.parquet"))
    rows = max(_LEAST_ROWS, BLOCK_VALUES // len(source.columns))
    duck.run(
        f"COPY (FROM {source.relation}) TO {file} (FORMAT parquet, ROW_GROUP_SIZE {rows})",
        where=source.name,
    )
    relation = f"read_parquet({file})"
    return replace(source, relation=relation, columns=duck.columns(relation), stable=True)


def batches(duck: Duck, source: Source, expressions: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Returns batches with a column per expression, each with the number of its first row."""
    picked = ", ".join(f"{sql} AS c{place}" for place, sql in enumerate(expressions))
    rows = max(_LEAST_ROWS, BLOCK_VALUES // len(expressions))
    return duck.numbered(f"SELECT {picked} FROM {source.relation}", where=source.name, rows=rows)


class Facts:
    """What the rows say of each column.

    Attributes:
        rows: number of rows.
        absent: missing values.
        wrong: values that are not numbers.
        first_absent: the first row with a missing value, or −1.
        unfit: the first row with a number that no float32 holds, or −1.
        filled: values that are not zero, nor missing, in all rows.
        known: numbers in the training rows.
        total: their sum.
        low: the smallest of them.
        high: the largest of them.
    """

    def __init__(self, width: int) -> None:
        self.rows = 0
        self.absent, self.wrong, self.filled, self.known = np.zeros((4, width), np.int64)
        self.first_absent, self.unfit = np.full((2, width), -1, np.int64)
        self.total = np.zeros(width)
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)

    @property
    def mean(self) -> Doubles:
        """The mean of the training rows; 0 where they have no number."""
        return np.asarray(self.total / np.maximum(self.known, 1))

    def add(
        self,
        first: int,
        column: int,
        block: Doubles,
        nulls: Booleans | None,
        training: Booleans | None,
    ) -> None:
        """Adds some rows of consecutive columns.

        Args:
            first: the first row.
            column: the first column.
            block: the values, ``[columns, rows]``; NaN where there is no number.
            nulls: which of them are not missing values but wrong; None if none are.
            training: whether each row is one that statistics are taken from; None means all are.
        """
        part = slice(column, column + len(block))
        missing = np.isnan(block)
        seen = ~missing if training is None else ~missing & training
        absent = missing if nulls is None else missing & ~nulls
        self.rows = max(self.rows, first + block.shape[1])
        if nulls is not None:
            self.wrong[part] += nulls.sum(axis=1)
        count = absent.sum(axis=1)
        self.absent[part] += count
        self.filled[part] += np.count_nonzero(block, axis=1) - missing.sum(axis=1)
        for place in np.flatnonzero((count > 0) & (self.first_absent[part] < 0)):
            self.first_absent[column + place] = first + np.argmax(absent[place])
        low, high = _range(block)
        for place in np.flatnonzero((np.maximum(-low, high) > _LARGEST) & (self.unfit[part] < 0)):
            self.unfit[column + place] = first + np.argmax(np.abs(block[place]) > _LARGEST)
        if training is not None:
            low, high = _range(block[:, training])
        self.known[part] += seen.sum(axis=1)
        self.total[part] += np.add.reduce(block, axis=1, where=seen)
        self.low[part] = np.minimum(self.low[part], low)
        self.high[part] = np.maximum(self.high[part], high)


def _range(block: Doubles) -> tuple[Doubles, Doubles]:
    """Returns the smallest and the largest number of each row, but for NaN."""
    low = np.fmin.reduce(block, axis=1, initial=np.inf)
    return low, np.fmax.reduce(block, axis=1, initial=-np.inf)


class Numbers:
    """The values of columns, and what they say.

    Args:
        duck: the session.
        source: the table.
        columns: the columns.
        file: how the names of temporary files begin.
        training: whether each row is one that statistics are taken from; None means all are.

    Attributes:
        facts: what the values say, by `place`.
    """

    def __init__(
        self,
        duck: Duck,
        source: Source,
        columns: Sequence[str],
        file: Path,
        *,
        training: Booleans | None = None,
    ) -> None:
        self.facts = Facts(2 * len(columns))  # with room for columns that are read once more
        self._duck, self._source, self._file, self._training = duck, source, file, training
        self._kept: list[tuple[int, Path]] = []  # the first column of each file
        self._read(columns, 0, _cast)
        # In a text file a cell that is not a number may be a missing value, which its text says.
        # Few columns have any, and only they are read once more.
        wrong = zip(columns, self.facts.wrong, strict=False)
        again = [name for name, count in wrong if count and is_text(source, name)]
        self._read(again, len(columns), number)
        self._places = {name: place for place, name in enumerate((*columns, *again))}

    def place(self, name: str) -> int:
        """Returns the place of a column in the facts and blocks."""
        return self._places[name]

    def _read(
        self, columns: Sequence[str], column: int, expression: Callable[[Source, str], str]
    ) -> None:
        """Reads columns by an SQL expression; they get the places from `column` on."""
        import pyarrow

        width = TEXT_COLUMNS if self._source.untyped else BLOCK_COLUMNS
        for start in range(0, len(columns), width):
            names = columns[start : start + width]
            values = [expression(self._source, name) for name in names]
            schema = pyarrow.schema([(str(place), "float") for place in range(len(names))])
            how = pyarrow.ipc.IpcWriteOptions(compression="lz4")
            path = self._file.with_name(f"{self._file.name}_{column}")
            with (
                pyarrow.OSFile(str(path), "wb") as out,
                pyarrow.ipc.new_file(out, schema, options=how) as writer,
            ):
                for first, batch in batches(self._duck, self._source, values):
                    block = np.empty((len(names), batch.num_rows))
                    nulls = None
                    for place, one in enumerate(batch.columns):
                        block[place] = one.to_numpy(zero_copy_only=False)
                        if one.null_count:
                            nulls = np.zeros(block.shape, np.bool_) if nulls is None else nulls
                            nulls[place] = one.is_null().to_numpy(zero_copy_only=False)
                    used = self._training
                    used = None if used is None else used[first : first + batch.num_rows]
                    self.facts.add(first, column, block, nulls, used)
                    with np.errstate(over="ignore"):
                        kept = [pyarrow.array(row) for row in block.astype(np.float32)]
                    writer.write(pyarrow.record_batch(kept, schema=schema))
            self._kept.append((column, path))
            column += len(names)

    def blocks(self, filling: Doubles) -> Iterator[tuple[int, int, Floats]]:
        """Yields the first row, the first column and values ``[rows, columns]``.

        Blocks of columns come from left to right, each from the first row on. `filling` has for
        each column what a missing value becomes.
        """
        import pyarrow

        for column, path in self._kept:
            first = 0
            with pyarrow.memory_map(str(path)) as file:
                reader = pyarrow.ipc.open_file(file)
                for batch in map(reader.get_batch, range(reader.num_record_batches)):
                    columns = batch.columns
                    block = np.stack([one.to_numpy() for one in columns], axis=1)
                    if np.isnan(block.sum()):
                        rows, places = np.nonzero(np.isnan(block))
                        block[rows, places] = filling[column + places]
                    yield first, column, block
                    first += len(block)


def _cast(source: Source, name: str) -> str:
    """Returns an SQL expression for a number: NaN or NULL if it is missing, NULL if it is none."""
    if not is_text(source, name):
        return f"coalesce({quoted(name)}::DOUBLE, 'nan'::DOUBLE)"
    # Without `trim` DuckDB moves the cast into its reader, where a text is an error.
    return f"TRY_CAST(trim({plain(source, name)}) AS DOUBLE)"


class InMemory:
    """Arrays in memory, by name."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.num_features = 0

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Returns a new array of zeros."""
        return self.arrays.setdefault(name, np.zeros(shape, dtype))

    def shorten(self, name: str, length: int) -> None:
        """Cuts an array to its first `length` entries."""
        self.arrays[name] = self.arrays[name][:length].copy()

    def read(self, name: str) -> Array:
        """Returns an array."""
        return self.arrays[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of an array; empty if there is none."""
        return self.arrays[name].shape if name in self.arrays else ()

    @property
    def x(self) -> Any:
        """The features: ``x``, a CSR matrix of ``x_data`` and the like, or None."""
        if "x_indptr" not in self.arrays:
            return self.arrays.get("x")
        parts = tuple(self.arrays[name] for name in ("x_data", "x_indices", "x_indptr"))
        return scipy.sparse.csr_array(parts, shape=(len(parts[2]) - 1, self.num_features))


Entries = tuple[Integers, Integers, Floats]
Block = tuple[Integers, Integers, Any]


class FeaturePart:
    """Features that stand side by side with others.

    Attributes:
        width: number of features.
        filled: number of values that are not zero, at most.
    """

    width: int
    filled: int

    def blocks(self) -> Iterator[Block]:
        """Yields rows, which ascend, columns, and their values, dense or CSR."""
        raise NotImplementedError

    def fill(self, x: Floats) -> None:
        """Fills `x`, zeros with at least as many rows as there are nodes."""
        for rows, columns, block in self.blocks():
            values = block.toarray() if scipy.sparse.issparse(block) else block
            x[_span(rows), _span(columns)] = values

    def entries(self) -> Iterator[Entries]:
        """Yields rows, columns and values that are not zero; rows ascend in each part."""
        for rows, columns, block in self.blocks():
            found = scipy.sparse.coo_array(block)
            yield rows[found.coords[0]], columns[found.coords[1]], found.data


def _span(places: Integers) -> Any:
    """Returns places as a slice if they follow each other, which is quicker to fill."""
    whole = len(places) > 0 and bool((np.diff(places) == 1).all())
    return slice(int(places[0]), int(places[-1]) + 1) if whole else places


class ColumnFeatures(FeaturePart):
    """The features of a node table.

    Attributes:
        preparation: what becomes of each column.
        source: the node table.
        numbers: the values of the columns of numbers, and of others that have none.
        others: the other columns, by name.
    """

    def __init__(
        self,
        preparation: Preparation,
        source: Source,
        numbers: Numbers,
        others: Mapping[str, NonNumericColumn],
    ) -> None:
        self.preparation, self.source = preparation, source
        self.numbers, self.others = numbers, others
        self.width, self.filled, facts = 0, 0, numbers.facts
        for column in preparation.columns:
            self.width += len(column.features)
            if column.kind == NUMBER:
                place = numbers.place(column.name)
                self.filled += int(facts.filled[place] + facts.absent[place] * bool(column.fill))
            else:
                self.filled += facts.rows * (1 if column.kind == CATEGORY else len(column.features))

    def blocks(self) -> Iterator[Block]:
        """Yields rows, columns and their values: first of all numbers, then of other columns."""
        width, start = len(self.numbers.facts.total), 0
        place, filling = np.full(width, -1), np.zeros(width)  # −1: it is no feature
        for column in self.preparation.columns:
            if column.kind == NUMBER:
                at = self.numbers.place(column.name)
                place[at], filling[at] = start, column.fill
            start += len(column.features)
        for first, at, block in self.numbers.blocks(filling):
            to = place[at : at + block.shape[1]]
            there = slice(None) if (to >= 0).all() else to >= 0
            yield np.arange(first, first + len(block)), to[there], block[:, there]
        for first, start, block in self._encoded():
            columns = np.arange(start, start + block.shape[1])
            yield np.arange(first, first + len(block)), columns, block

    def _encoded(self) -> Iterator[tuple[int, int, Floats]]:
        """Yields the first row, the first feature and the features of other columns."""
        start = 0
        for column in self.preparation.columns:
            if column.kind != NUMBER:
                for first, batch in self.others[column.name].batches(column.kind):
                    block = encode(column, batch.column(0), self.preparation.arrays)
                    for row, _ in np.argwhere(~np.isfinite(block)):
                        raise GraphError(
                            f"{self.source.name}: row {first + int(row) + 1}, column "
                            f"{column.name!r}: a value is no finite float32"
                        )
                    yield first, start, block
            start += len(column.features)


@dataclass
class MatrixFeatures(FeaturePart):
    """The features of a matrix.

    Attributes:
        x: numbers ``[rows, features]``, dense, perhaps a map of a file, or CSR.
        places: the node of each row, −1 if there is none; None means that they are the same.
    """

    x: Any
    places: Integers | None = None

    def __post_init__(self) -> None:
        self.width = int(self.x.shape[1])
        self.filled = int(self.x.nnz if scipy.sparse.issparse(self.x) else self.x.size)

    def blocks(self) -> Iterator[Block]:
        """Yields nodes, which ascend, all columns, and their values as float32."""
        height = max(1, BLOCK_VALUES // self.width)
        for first in range(0, self.x.shape[0], height):
            with np.errstate(over="ignore"):
                block = self.x[first : first + height].astype(np.float32, copy=False)
            rows = np.arange(first, first + block.shape[0])
            if self.places is not None:
                rows = self.places[rows]
                order = np.argsort(rows)[np.count_nonzero(rows < 0) :]
                rows, block = rows[order], block[order]
            yield rows, np.arange(self.width), block


def mostly_zeros(parts: Sequence[FeaturePart], rows: int) -> bool:
    """Returns whether features are so many, and so many of them 0, as to be sparse."""
    width = sum(part.width for part in parts)
    filled = sum(part.filled for part in parts)
    return width >= SPARSE_WIDTH and filled <= SPARSE_SHARE * rows * width


def entries_of(parts: Sequence[FeaturePart]) -> Iterator[Entries]:
    """Yields rows, columns and values of all parts that are not zero; rows ascend in each."""
    start = 0
    for part in parts:
        for rows, columns, values in part.entries():
            yield rows, start + columns, values
        start += part.width


def fill_sparse(
    into: InMemory | ArrayWriter,
    entries: Callable[[], Iterator[Entries]],
    num_nodes: int,
) -> None:
    """Fills the arrays of a CSR matrix from entries, which are read twice, part by part.

    Args:
        into: where the arrays are created.
        entries: yields rows, columns and values; rows ascend in each part.
        num_nodes: number of rows.
    """
    indptr = into.array("x_indptr", (num_nodes + 1,), np.int64)
    for rows, _, _ in entries():
        if len(rows):
            first = int(rows[0])
            counts = np.bincount(rows - first)
            indptr[first + 1 : first + 1 + len(counts)] += counts
    np.cumsum(indptr, out=indptr)
    indices = into.array("x_indices", (int(indptr[-1]),), np.int32)
    data = into.array("x_data", (int(indptr[-1]),), np.float32)
    free = np.array(indptr[:-1])  # the next free place of each row
    for rows, columns, values in entries():
        if len(rows):
            starts = np.flatnonzero(np.diff(rows, prepend=-1))
            lengths = np.diff(starts, append=len(rows))
            rank = np.arange(len(rows)) - np.repeat(starts, lengths)
            places = free[rows] + rank
            indices[places], data[places] = columns, values
            free[rows[starts]] += lengths
    _sort_rows(indptr, indices, data)


def _sort_rows(indptr: Integers, indices: Any, data: Any) -> None:
    """Sorts the columns in each row, a few rows at a time."""
    first, rows = 0, len(indptr) - 1
    while first < rows:
        last = int(np.searchsorted(indptr, indptr[first] + _SORTED, side="right")) - 1
        last = min(max(last, first + 1), rows)
        part = slice(int(indptr[first]), int(indptr[last]))
        pointers = indptr[first : last + 1] - part.start
        block = scipy.sparse.csr_array(
            (np.array(data[part]), np.array(indices[part]), pointers),
            shape=(last - first, np.iinfo(np.int32).max),
        )
        block.sort_indices()
        indices[part], data[part] = block.indices, block.data
        first = last


@dataclass
class EdgeFeatures:
    """The features of one relation's edges.

    Attributes:
        features: what fills those of columns; None if there are none.
        notes: lines for the user.
        fates: what became of each column.
        age: what turns the time of an edge into the last feature; None without it.
    """

    features: ColumnFeatures | None = None
    notes: list[str] = field(default_factory=list)
    fates: list[ColumnOutcome] = field(default_factory=list)
    age: Column | None = None

    @property
    def preparation(self) -> Preparation | None:
        """What turns the columns into features."""
        prepared = None if self.features is None else self.features.preparation
        if self.age is None:
            return prepared
        prepared = prepared or Preparation(())
        return replace(prepared, columns=(*prepared.columns, self.age))

    @property
    def width(self) -> int:
        """Number of features of columns."""
        return 0 if self.features is None else self.features.width
