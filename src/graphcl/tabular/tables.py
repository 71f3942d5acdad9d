"""Turns a list of edges and a table of nodes into the arrays of a graph.

DuckDB reads, numbers, sorts and merges in bounded memory. The arrays are filled batch by batch, in
memory or in a store. The report lists everything that was guessed, merged, left out or filled in.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.tabular import columns as table_columns
from graphcl.tabular.duck import Duck
from graphcl.tabular.edges import Entries
from graphcl.tabular.nodes import read_labels, read_split
from graphcl.tabular.numbering import NumberedTables
from graphcl.tabular.options import TableOptions, TableReport, counted
from graphcl.tabular.sources import Source


class ArraySink(Protocol):
    """Where arrays are created: in memory, or by the writer of a store."""

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Returns a new array of zeros, called `name`, for the caller to fill."""

    def shorten(self, name: str, length: int) -> None:
        """Cuts an array to its first `length` entries."""


class InMemory:
    """Arrays in memory, by name."""

    def __init__(self) -> None:
        self.arrays: dict[str, npt.NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """Returns a new array of zeros."""
        self.arrays[name] = np.zeros(shape, dtype)
        return self.arrays[name]

    def shorten(self, name: str, length: int) -> None:
        """Cuts an array to its first `length` entries."""
        self.arrays[name] = self.arrays[name][:length].copy()


@contextmanager
def open_tables(
    edges: str, options: TableOptions, *, on_step: Callable[[str], None] = lambda _: None
) -> Iterator["Tables"]:
    """Opens tables, checks them and numbers the nodes; `on_step` gets the name of each step.

    Raises:
        GraphError: a table is wrong; the message names the table, row and column, the value, and
            what to do.
    """
    with Duck() as duck:
        yield Tables(NumberedTables(duck, edges, options, on_step))


class Tables:
    """Tables that have been checked and numbered, and can fill arrays.

    Attributes:
        num_nodes: number of nodes.
        report: what was found; it is complete after `fill_structure`, `labels` and `masks`.
    """

    def __init__(self, numbered: NumberedTables) -> None:
        self._numbered = numbered
        self._duck, self._options = numbered.duck, numbered.options
        self.num_nodes = numbered.num_nodes
        self.report: TableReport = numbered.report

    @property
    def num_features(self) -> int:
        """Number of features from the tables; structural features are not counted."""
        if self._options.features == "structural":
            return 0
        if self._numbered.matrix is not None:
            return int(self._numbered.matrix.x.shape[1])
        return len(self._numbered.features.names) if self._numbered.features else 0

    def fill_structure(self, into: ArraySink, *, index: Any = np.int64) -> None:
        """Fills ``indptr``, ``indices`` of type `index` and, with weights, ``edge_weight``."""
        counts, weighted = self.report.counts, self._options.weight is not None
        room = 2 * (counts.rows - counts.self_loops)
        indices = into.array("indices", (room,), index)
        weight = into.array("edge_weight", (room,), np.float32) if weighted else None
        indptr = into.array("indptr", (self.num_nodes + 1,), np.int64)
        place = 0
        # Entries are sorted by row, so a batch covers a range of rows. Its first row may have begun
        # in the previous batch, hence `+=`. Row lengths become pointers at the end.
        for rows, columns, weights in Entries(self._duck, weighted, counts):
            part = slice(place, place + len(columns))
            indices[part] = columns
            if weight is not None and weights is not None:
                with np.errstate(over="ignore", under="ignore"):
                    weight[part] = weights
            first = int(rows[0])
            degrees = np.bincount(rows - first)
            indptr[first + 1 : first + 1 + len(degrees)] += degrees
            place += len(columns)
        self.report.isolated_nodes = int((indptr[1:] == 0).sum())
        np.cumsum(indptr, out=indptr)
        if weight is not None:
            if counts.symmetric:
                weight[:place] *= np.float32(0.5)  # exact; both directions were added up
            self._check_range(weight[:place])
        del indices, weight  # no map may be left when a store cuts its files
        into.shorten("indices", place)
        if weighted:
            into.shorten("edge_weight", place)
        self.report.notes += _edge_notes(self.report, weighted=weighted)

    def fill_features(self, x: npt.NDArray[np.float32]) -> None:
        """Fills the first `num_features` columns of `x`, zeros with `num_nodes` rows."""
        place = 0
        for block in self._blocks():
            x[place : place + len(block), : block.shape[1]] = block
            place += len(block)

    def sparse_features(self) -> scipy.sparse.csr_array | None:
        """Returns the features as CSR, or None if they were not given as a sparse matrix."""
        matrix = self._numbered.matrix
        if matrix is None or not scipy.sparse.issparse(matrix.x):
            return None
        x = scipy.sparse.csr_array(matrix.x, copy=True)
        x.resize((self.num_nodes, x.shape[1]))
        return x

    def labels(self) -> npt.NDArray[np.int64] | None:
        """Returns a class per node (−1 if it has none), or None if there are no labels."""
        matrix, given = self._numbered.matrix, self._options.label
        if given is None:
            return None if matrix is None or matrix.y is None else self._padded(matrix.y, -1)
        source = self._table("--label")
        name = table_columns.find(source, given, "--label")
        y, classes = read_labels(self._duck, source, name)
        self.report.columns["label"], self.report.class_names = name, classes
        called = ": " + ", ".join(classes[:8]) + (", …" if len(classes) > 8 else "")
        unlabelled = int((y < 0).sum())
        self.report.notes.append(
            f"nodes: labels in {name!r}: {int(y.max()) + 1} classes{called if classes else ''}"
            + (f"; {counted(unlabelled, 'node')} without a label" if unlabelled else "")
        )
        return self._padded(y, -1)

    def masks(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Returns the masks of the split; the dictionary is empty if there is no split."""
        matrix, given = self._numbered.matrix, self._options.split
        found = {} if matrix is None else matrix.masks
        if given is not None:
            source = self._table("--split")
            name = table_columns.find(source, given, "--split")
            found = read_split(self._duck, source, name)
            self.report.columns["split"] = name
            sizes = "/".join(f"{int(mask.sum()):,}" for mask in found.values())
            self.report.notes.append(f"nodes: split in {name!r}: {sizes} train/val/test nodes")
        return {name: self._padded(mask, False) for name, mask in found.items()}

    def node_ids(self) -> Any:
        """Returns the ids as an Arrow column, or None if they are 0 … num_nodes − 1 in order."""
        import pyarrow

        kind = self._numbered.id_kind
        if kind != "VARCHAR":
            (plain,) = self._duck.row(f"SELECT bool_and(key::{kind} = number) FROM nodes")
            if plain:
                return None
        query = f"SELECT key::{kind} FROM nodes ORDER BY number"
        return pyarrow.chunked_array([batch.column(0) for batch in self._duck.batches(query)])

    def _blocks(self) -> Iterator[npt.NDArray[np.float32]]:
        if self._options.features == "structural":
            return
        if self._numbered.matrix is not None:
            x = self._numbered.matrix.x
            yield x.toarray() if scipy.sparse.issparse(x) else x
        elif self._numbered.features is not None:
            yield from self._numbered.features.batches()

    def _table(self, option: str) -> Source:
        if self._numbered.nodes is None or self._numbered.matrix is not None:
            raise GraphError(f"{option}: there is no node table with columns; pass --nodes")
        return self._numbered.nodes

    def _padded(self, values: npt.NDArray[Any], filling: Any) -> npt.NDArray[Any]:
        """Returns one value per node; nodes that only edges name get the value `filling`."""
        added = self.num_nodes - len(values)
        return np.concatenate([values, np.full((added, *values.shape[1:]), filling, values.dtype)])

    def _check_range(self, weight: npt.NDArray[np.float32]) -> None:
        if len(weight) and not (np.isfinite(weight).all() and (weight > 0).all()):
            raise GraphError(
                f"{self._numbered.edges.name}: the weights of an edge add up to a number outside "
                "the range of float32; divide them by a constant (only their ratios matter)"
            )


def _edge_notes(report: TableReport, *, weighted: bool) -> list[str]:
    """Returns the report's lines about merged rows, self-loops and isolated nodes."""
    counts, notes = report.counts, []
    merged = "weights added" if weighted else "merged"
    if counts.self_loops:
        notes.append(f"edges: {counted(counts.self_loops, 'self-loop')} left out")
    if counts.symmetric:
        notes.append("edges: each is listed in both directions")
    elif counts.both_directions:
        listed = counted(counts.both_directions, "edge is", "edges are")
        notes.append(f"edges: {listed} listed in both directions: {merged}")
    if counts.repeated:
        notes.append(f"edges: {counted(counts.repeated, 'repeated row')}: {merged}")
    if report.isolated_nodes:
        notes.append(f"nodes: {counted(report.isolated_nodes, 'node has', 'nodes have')} no edge")
    return notes
