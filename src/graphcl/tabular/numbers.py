"""Columns of numbers: read once, looked at, and kept on disk until it is known what they become.

Whether a column holds numbers is known only after its last row. So the values of a first pass go to
a temporary file, as float32: a block that is mostly zeros as its other values alone. The features
are made from this file, and the table itself is not parsed a second time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from graphcl.tabular.cells import NO_VALUE, is_text, plain
from graphcl.tabular.duck import quoted
from graphcl.tabular.node_table import NodeTable
from graphcl.tabular.sources import Source

MOST_FILLED = 0.15  # of a block's values: with more of them that are not zero, all are kept

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


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

    def widen(self, width: int) -> None:
        """Adds columns of which nothing is known yet."""
        for name, value in vars(Facts(width)).items():
            if isinstance(value, np.ndarray):
                setattr(self, name, np.concatenate([getattr(self, name), value]))

    @property
    def mean(self) -> Floats:
        """The mean of the training rows; 0 where they have no number."""
        found: Floats = self.total / np.maximum(self.known, 1)
        return found


class Piece(NamedTuple):
    """A block of values: rows ``first …`` and some consecutive columns.

    Attributes:
        first: the first row.
        rows: number of rows.
        column: the first column.
        columns: number of columns.
        places: where the values are, row by row; None means everywhere.
        values: float32; NaN is a missing value.
    """

    first: int
    rows: int
    column: int
    columns: int
    places: npt.NDArray[np.int32] | None
    values: npt.NDArray[np.float32]

    def entries(self, filling: Floats) -> tuple[Places, Places, npt.NDArray[np.float32]]:
        """Returns rows, columns and values that are not zero; `filling` is for missing values."""
        if self.places is None:
            flat = np.flatnonzero(self.values).astype(np.int64)
            values = self.values[flat]
        else:
            flat, values = self.places.astype(np.int64), self.values.copy()
        rows, columns = self.first + flat // self.columns, self.column + flat % self.columns
        missing = np.isnan(values)
        if missing.any():
            values[missing] = filling[columns[missing]]
            kept = values != 0
            rows, columns, values = rows[kept], columns[kept], values[kept]
        return rows, columns, values

    def dense(self, filling: Floats) -> npt.NDArray[np.float32]:
        """Returns the block ``[rows, columns]``."""
        if self.places is None:
            block = self.values.reshape(self.rows, self.columns).copy()
        else:
            block = np.zeros((self.rows, self.columns), np.float32)
            block.reshape(-1)[self.places] = self.values
        if np.isnan(block.sum()):
            missing = np.isnan(block)
            wide = np.broadcast_to(filling[self.column : self.column + self.columns], block.shape)
            block[missing] = wide[missing]
        return block


@dataclass(frozen=True)
class _Kept:
    """Where a piece lies in the file; `count` values."""

    first: int
    rows: int
    column: int
    columns: int
    start: int
    count: int
    sparse: bool


class Numbers:
    """The values of columns, and what they say.

    Args:
        table: the node table.
        columns: the columns.
        file: a temporary file, to be created.
        training: whether each row is one that statistics are taken from; None means all are.

    Attributes:
        facts: what the values say, by `place`.
    """

    def __init__(
        self,
        table: NodeTable,
        columns: Sequence[str],
        file: Path,
        *,
        training: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self.facts = Facts(len(columns))
        self._file, self._training = file, training
        self._kept: list[_Kept] = []
        self._end = 0
        file.write_bytes(b"")
        self._read(table, columns, 0)
        # In a text file a cell that is not a number may be a missing value, which its text says.
        # Few columns have any, and only they are read once more.
        again: list[str] = []
        for name, wrong in zip(columns, self.facts.wrong, strict=True):
            again += [name] if wrong and is_text(table.source, name) else []
        self.facts.widen(len(again))
        self._read(table, again, len(columns), with_texts=True)
        self._places = {name: place for place, name in enumerate((*columns, *again))}

    def place(self, name: str) -> int:
        """Returns the place of a column in the facts and pieces."""
        return self._places[name]

    def _read(
        self, table: NodeTable, columns: Sequence[str], column: int, *, with_texts: bool = False
    ) -> None:
        """Reads columns, which get the places from `column` on."""
        with self._file.open("ab") as out:
            for block in table.blocks(columns):
                values = [_cast(table.source, name) for name in block]
                texts = [quoted(name) for name in block] if with_texts else []
                for first, batch in table.batches([*values, *texts]):
                    found = batch.columns[: len(block)]
                    if with_texts:
                        found = list(map(_with_missing, found, batch.columns[len(block) :]))
                    piece = self._look(first, column, found)
                    sparse, count = piece.places is not None, len(piece.values)
                    where = (first, piece.rows, column, piece.columns)
                    self._kept.append(_Kept(*where, self._end, count, sparse))
                    for part in (piece.places, piece.values):
                        if part is not None:
                            self._end += out.write(part.tobytes())
                    self.facts.rows = max(self.facts.rows, first + piece.rows)
                column += len(block)

    def pieces(self) -> Iterator[Piece]:
        """Yields all values, blocks of columns from left to right, each from the first row on."""
        with self._file.open("rb") as file:
            for kept in self._kept:
                file.seek(kept.start)
                places = None
                if kept.sparse:
                    places = np.frombuffer(file.read(4 * kept.count), np.int32)
                values = np.frombuffer(file.read(4 * kept.count), np.float32)
                yield Piece(kept.first, kept.rows, kept.column, kept.columns, places, values)

    def _look(self, first: int, column: int, batch: Sequence[Any]) -> Piece:
        """Adds a batch to the facts and returns its values."""
        rows, width = len(batch[0]), len(batch)
        block = np.empty((width, rows))
        wrong = np.zeros(width, np.int64)
        for place, values in enumerate(batch):
            block[place] = values.to_numpy(zero_copy_only=False)
            wrong[place] = values.null_count
        self.facts.wrong[column : column + width] += wrong
        training = None if self._training is None else self._training[first : first + rows]
        flat = np.flatnonzero(block)  # a missing value is not zero
        with np.errstate(over="ignore"):
            if len(flat) <= MOST_FILLED * block.size:
                places, own = np.divmod(flat, rows)
                values = block.reshape(-1)[flat]
                self._add_sparse(first, column, places, own, values, wrong, training, rows, batch)
                order = np.argsort(own * width + places)
                kept = (own * width + places)[order].astype(np.int32)
                return Piece(first, rows, column, width, kept, values[order].astype(np.float32))
            self._add_dense(first, column, block, wrong, training, batch)
            whole = np.ascontiguousarray(block.T, np.float32).reshape(-1)
            return Piece(first, rows, column, width, None, whole)

    def _add_sparse(
        self,
        first: int,
        column: int,
        places: Places,
        rows: Places,
        values: Floats,
        wrong: Places,
        training: npt.NDArray[np.bool_] | None,
        height: int,
        batch: Sequence[Any],
    ) -> None:
        width, facts = len(wrong), self.facts
        part = slice(column, column + width)
        missing = np.isnan(values)
        absent = np.bincount(places[missing], minlength=width)
        facts.absent[part] += absent - wrong
        for place in np.flatnonzero((absent > wrong) & (facts.first_absent[part] < 0)):
            facts.first_absent[column + place] = first + _first_nan(batch[int(place)])
        facts.filled[part] += np.bincount(places[~missing], minlength=width)
        self._note_unfit(first, column, places, rows, values)
        trained = height if training is None else int(training.sum())
        seen = ~missing if training is None else ~missing & training[rows]
        lost = missing if training is None else missing & training[rows]
        lost_count = np.bincount(places[lost], minlength=width)
        facts.known[part] += trained - lost_count
        places, values = places[seen], values[seen]
        facts.total[part] += np.bincount(places, weights=values, minlength=width)
        count = np.bincount(places, minlength=width)
        zeros = count + lost_count < trained  # what is not kept is a zero
        facts.low[part][zeros] = np.minimum(facts.low[part][zeros], 0)
        facts.high[part][zeros] = np.maximum(facts.high[part][zeros], 0)
        some = np.flatnonzero(count)
        if len(some):
            starts = (np.cumsum(count) - count)[some]
            low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
            facts.low[column + some] = np.minimum(facts.low[column + some], low)
            facts.high[column + some] = np.maximum(facts.high[column + some], high)

    def _add_dense(
        self,
        first: int,
        column: int,
        block: Floats,
        wrong: Places,
        training: npt.NDArray[np.bool_] | None,
        batch: Sequence[Any],
    ) -> None:
        width, facts = len(block), self.facts
        part = slice(column, column + width)
        missing = np.isnan(block)
        absent = missing.sum(1)
        facts.absent[part] += absent - wrong
        for place in np.flatnonzero((absent > wrong) & (facts.first_absent[part] < 0)):
            facts.first_absent[column + place] = first + _first_nan(batch[int(place)])
        large = np.abs(block) > np.finfo(np.float32).max
        if large.any():
            places, rows = np.nonzero(large)
            self._note_unfit(first, column, places, rows, block[large])
        filled = np.count_nonzero(block, axis=1) - absent
        facts.filled[part] += filled
        seen, lost = block, missing
        if training is not None:
            seen, lost = block[:, training], missing[:, training]
        if not seen.shape[1]:
            return
        facts.known[part] += seen.shape[1] - lost.sum(1)
        facts.total[part] += np.where(lost, 0, seen).sum(1) if lost.any() else seen.sum(1)
        low, high = seen, seen
        if lost.any():
            low, high = np.where(lost, np.inf, seen), np.where(lost, -np.inf, seen)
        facts.low[part] = np.minimum(facts.low[part], low.min(1))
        facts.high[part] = np.maximum(facts.high[part], high.max(1))

    def _note_unfit(
        self, first: int, column: int, places: Any, rows: Places, values: Floats
    ) -> None:
        large = np.abs(values) > np.finfo(np.float32).max
        for place, row in zip(places[large].tolist(), rows[large].tolist(), strict=True):
            if self.facts.unfit[column + place] < 0:
                self.facts.unfit[column + place] = first + row


def _cast(source: Source, name: str) -> str:
    """Returns an SQL expression for a number: NaN or NULL if it is missing, NULL if it is none."""
    if not is_text(source, name):
        return f"coalesce({quoted(name)}::DOUBLE, 'nan'::DOUBLE)"
    # Without `trim` DuckDB moves the cast into its reader, where a text is an error.
    return f"TRY_CAST(trim({plain(source, name)}) AS DOUBLE)"


def _with_missing(values: Any, texts: Any) -> Any:
    """Returns numbers, where a text says that a value is missing NaN, and NULL if it is none."""
    if not values.null_count:
        return values
    import pyarrow
    import pyarrow.compute as compute

    unread = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
    cells = compute.utf8_lower(compute.utf8_trim(texts.take(unread), " "))
    found = np.full(len(unread), np.inf)  # not a number, for now
    missing = compute.is_in(cells, value_set=pyarrow.array(NO_VALUE, cells.type))
    for mark, number in ((missing, np.nan), (cells.is_null(), np.nan)):
        found[mark.to_numpy(zero_copy_only=False)] = number
    for word, number in (("true", 1.0), ("false", 0.0)):
        said = compute.equal(cells, word).fill_null(False)
        found[said.to_numpy(zero_copy_only=False)] = number
    whole = values.to_numpy(zero_copy_only=False).copy()
    whole[unread] = found
    nothing = np.zeros(len(whole), np.bool_)
    nothing[unread] = np.isinf(found)
    return pyarrow.array(whole, mask=nothing)


def _first_nan(values: Any) -> int:
    """Returns the first row of a batch's column that is NaN and not NULL."""
    import pyarrow.compute

    found = pyarrow.compute.is_nan(values).fill_null(False)
    return int(np.argmax(found.to_numpy(zero_copy_only=False)))
