"""Vectors beside a table: an `.npy` file with a row for each node, as language models give them.

The file is mapped and read in blocks of rows, so its size does not matter. Its rows are in the
order of the node table, or a second file has their ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.files.npy import map_npy, read_npy
from graphcl.tabular.columns import IdColumn, identity
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.numbers import Places
from graphcl.tabular.options import counted
from graphcl.tabular.preparation import Vectors
from graphcl.tabular.prepared import is_far
from graphcl.tabular.problems import Problem
from graphcl.tabular.sources import Source

BLOCK_VALUES = 1 << 21  # values that are read at a time


def open_vectors(given: Any) -> tuple[str, npt.NDArray[Any]]:
    """Returns the name of vectors and a map of their file, or the array that is given.

    Raises:
        GraphError: it is no table of numbers ``[rows, width]``.
    """
    if isinstance(given, str | Path):
        path, name = Path(given), Path(given).stem
        if path.suffix.lower() != ".npy":
            raise GraphError(f"{path}: --vectors takes an .npy file: numpy.save('vectors.npy', x)")
        try:
            table = map_npy(path, GraphError, fortran_too=True)
        except FileNotFoundError:
            raise GraphError(f"{path}: no such file") from None
    else:
        path, name, table = Path("vectors"), "vectors", np.asarray(given)
    if table.ndim != 2 or table.dtype.kind not in "biuf" or not table.size:
        raise GraphError(
            f"{path}: --vectors: expected numbers [nodes, width]; got {table.dtype} "
            f"{str(table.shape)[:60]}"
        )
    return name, table


def load_ids(duck: Duck, given: Any, rows: int, source: Source | None) -> IdColumn:
    """Loads the ids of vectors into ``vector_rows``, whose ``rowid`` is the row.

    Args:
        duck: the session.
        given: an `.npy` file or a list of ids, unless `source` is given.
        rows: number of vectors.
        source: the table of ids.
    """
    if source is None:
        import pyarrow

        path = isinstance(given, str | Path)
        ids = read_npy(Path(given), GraphError) if path else np.asarray(given)
        name = str(given) if path else "vector_ids"
        if ids.ndim != 1 or ids.dtype.kind not in "iuUO":
            raise GraphError(f"{name}: --vector-ids: expected integers or strings, one for each")
        ids = ids if ids.dtype.kind in "iu" else np.array([str(one) for one in ids])
        duck.load("vector_rows", pyarrow.table({"id": pyarrow.array(ids.tolist())}))
        source = Source(name, "vector_rows", duck.columns("vector_rows"))
        column = IdColumn(source, "id", "vector_rows", "id")
    else:
        name, _ = identity(source, None)
        duck.run(
            f"CREATE TABLE vector_rows AS SELECT {quoted(name)} AS id FROM {source.relation}",
            where=source.name,
        )
        column = IdColumn(source, name, "vector_rows", "id")
    (found,) = duck.row("SELECT count(*) FROM vector_rows")
    if found != rows:
        raise GraphError(
            f"{source.name}: --vector-ids: {counted(found, 'id')} for {counted(rows, 'vector')}"
        )
    column.check_present(duck)
    return column


@dataclass
class VectorFeatures:
    """The features that a file of vectors becomes.

    Attributes:
        path: the file's name in messages.
        table: the vectors, ``[rows, width]``.
        places: the node of each row, −1 if there is none; None means that they are the same.
        vectors: what becomes of them; their range is known after `look`.
        notes: what was found.
        problems: what is wrong.
    """

    path: str
    table: npt.NDArray[Any]
    places: Places | None
    vectors: Vectors
    notes: list[str]
    problems: list[Problem]

    @property
    def width(self) -> int:
        """Number of features."""
        return int(self.table.shape[1])

    @property
    def filled(self) -> int:
        """Number of values that are not zero, at most."""
        return int(self.table.size)

    def fill(self, x: npt.NDArray[np.float32]) -> None:
        """Fills `x`, zeros with at least as many rows as there are nodes."""
        for rows, block in self._blocks():
            x[rows] = block

    def entries(self) -> Iterator[tuple[Places, Places, npt.NDArray[np.float32]]]:
        """Yields rows, columns and values that are not zero; rows ascend in each part."""
        for rows, block in self._blocks():
            order = np.argsort(rows)
            own, columns = np.nonzero(block[order])
            yield rows[order][own], columns, block[order][own, columns]

    def _blocks(self) -> Iterator[tuple[Places, npt.NDArray[np.float32]]]:
        height = max(1, BLOCK_VALUES // self.width)
        for first in range(0, len(self.table), height):
            with np.errstate(over="ignore"):
                block = np.asarray(self.table[first : first + height], dtype=np.float32)
            rows = np.arange(first, first + len(block))
            if self.places is not None:
                rows = self.places[rows]
                block, rows = block[rows >= 0], rows[rows >= 0]
            yield rows, block

    def look(self, known: Vectors | None, training: npt.NDArray[np.bool_] | None) -> None:
        """Finds the range of the values and what is wrong with them.

        Args:
            known: the vectors of a training; None keeps the range that is found.
            training: whether each node is one that the range is taken from; None means all are.
        """
        if known is not None and known.width != self.width:
            self.problems.append(
                Problem(
                    f"{self.path}: --vectors: vectors of {self.width:,} numbers; in training they "
                    f"had {known.width:,}"
                )
            )
            return
        low, high = np.inf, -np.inf
        for rows, block in self._blocks():
            wrong = np.argwhere(~np.isfinite(block))
            if len(wrong):
                node, place = (int(one) for one in wrong[0])
                row = int(rows[node]) if self.places is None else self._row(int(rows[node]))
                value = self.table[row, place]
                self.problems.append(
                    Problem(
                        f"{self.path}: --vectors: {value} in row {row}, number {place} (from 0); "
                        "a feature is a finite float32"
                    )
                )
                return
            seen = block if training is None else block[training[rows]]
            if seen.size:
                low, high = min(low, float(seen.min())), max(high, float(seen.max()))
        if low > high:
            low = high = 0.0
        if known is None:
            self.vectors = Vectors(self.vectors.name, self.width, low, high)
        elif is_far(known, low, high):
            self.notes.append(
                f"vectors: numbers far outside the training's range: {low:g} to {high:g}; in "
                f"training {known.low:g} to {known.high:g}"
            )

    def _row(self, node: int) -> int:
        assert self.places is not None
        return int(np.flatnonzero(self.places == node)[0])


def place_vectors(
    duck: Duck, given: Any, ids: IdColumn | None, kind: str, *, order: Source | None, strict: bool
) -> VectorFeatures:
    """Finds the node of each vector, once nodes are numbered.

    Args:
        duck: the session.
        given: the file or array.
        ids: the vectors' ids; None means that they are in the order of the node table.
        kind: the type in which ids are compared.
        order: the node table, or None.
        strict: whether to refuse nodes without a vector, and vectors without a node.
    """
    name, table = open_vectors(given)
    path = str(given) if isinstance(given, str | Path) else name
    found = VectorFeatures(path, table, None, Vectors(name, int(table.shape[1])), [], [])
    found.notes.append(f"vectors: {path}: {found.width:,} numbers for each node")
    if ids is None:
        rows = 0 if order is None else int(duck.row("SELECT count(*) FROM node_rows")[0])
        if order is None:
            found.problems.append(
                Problem(
                    f"{path}: --vectors: without a node table nobody knows whose rows these are; "
                    "pass their ids with --vector-ids FILE"
                )
            )
        elif rows != len(table):
            found.problems.append(
                Problem(
                    f"{path}: --vectors: {len(table):,} rows for {counted(rows, 'row')} of "
                    f"{order.name}; there must be one for each, in the same order, or ids of the "
                    "rows with --vector-ids FILE"
                )
            )
        return found
    twice = duck.rows(
        "SELECT id::VARCHAR, min(rowid) + 1, max(rowid) + 1 FROM vector_rows GROUP BY id "
        "HAVING count(*) > 1 ORDER BY 2 LIMIT 1"
    )
    if twice:
        value, first, last = twice[0]
        same = f"rows {first} and {last} have the same id {value!r}"
        found.problems.append(Problem(f"{ids.source.name}: --vector-ids: {same}"))
        return found
    query = (
        f"SELECT coalesce(number, -1) FROM (SELECT rowid AS place, CAST(id AS {kind}) AS key "
        "FROM vector_rows) LEFT JOIN nodes USING (key) ORDER BY place"
    )
    parts = [batch.column(0).to_numpy() for batch in duck.batches(query, where=ids.source.name)]
    found.places = np.concatenate(parts).astype(np.int64)
    (nodes,) = duck.row("SELECT count(*) FROM nodes")
    unknown = int((found.places < 0).sum())
    without = nodes - (len(found.places) - unknown)
    said = []
    if unknown:
        said.append(f"{counted(unknown, 'id is', 'ids are')} of no node: left out")
    if without:
        said.append(f"{counted(without, 'node has', 'nodes have')} none: zeros")
    if unknown == len(table) or (strict and said):
        reason = said[0].split(":")[0] if unknown < len(table) else "none of the ids is a node's"
        found.problems.append(Problem(f"{ids.source.name}: --vector-ids: {reason}"))
    found.notes += [f"vectors: {one}" for one in said]
    return found
