"""Turns a list of edges and a table of nodes into the arrays of a graph.

DuckDB reads, numbers, sorts and merges in bounded memory. The arrays are filled batch by batch, in
memory or in a store. The report lists everything that was guessed, merged, left out or filled in.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.graphs.validation import is_labelled
from graphcl.tabular.duck import Duck
from graphcl.tabular.edges import Entries
from graphcl.tabular.features import ArraySink, entries_of, fill_parts, fill_sparse
from graphcl.tabular.labels import (
    is_list,
    read_labels,
    read_several_labels,
    read_split,
    separator_in,
)
from graphcl.tabular.numbering import NumberedTables
from graphcl.tabular.options import TableOptions, TableReport, counted, say_isolated
from graphcl.tabular.problems import Problem, refuse
from graphcl.tabular.sources import Source

T = TypeVar("T")


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
    edges: Any,
    options: TableOptions,
    *,
    on_step: Callable[[str], None] = lambda _: None,
    identity: tuple[str, str] | None = None,
    problems: list[Problem] | None = None,
) -> Iterator["Tables"]:
    """Opens tables, checks them and numbers the nodes; `on_step` gets the name of each step.

    Before the first step it gets the line on what was guessed, if anything was. `identity` is the
    column of ids and how it was found, where the caller knows more edges than these. `problems`
    takes what is wrong, for a caller who has more to look at before all is refused.

    Raises:
        GraphError: a table is wrong; the message names the table, row and column, the value, and
            what to do.
    """
    with Duck() as duck:
        tables = Tables(NumberedTables(duck, edges, options, on_step, identity))
        if problems is None:
            refuse(tables.problems)
        else:
            problems += tables.problems
        yield tables


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
        # Read now, so that all that is wrong is found before anything is refused.
        self._y = self._collecting(self._read_labels)
        self._masks = self._collecting(self._read_masks) or {}

    @property
    def problems(self) -> list[Problem]:
        """What is wrong with the tables; with any of it, nothing else is to be asked of them."""
        return self._numbered.problems

    def _collecting(self, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except GraphError as error:
            self._numbered.problems.append(Problem(str(error)))
            return None

    def rest(self) -> None:
        """Gives back memory until the tables are needed again."""
        self._duck.rest()

    @property
    def num_features(self) -> int:
        """Number of features from the tables; structural features are not counted."""
        return sum(part.width for part in self._numbered.parts)

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
        say_isolated(self.report, "", self.report.isolated_nodes, self.num_nodes)

    def fill_features(self, x: npt.NDArray[np.float32]) -> None:
        """Fills the first `num_features` columns of `x`, zeros with `num_nodes` rows."""
        fill_parts(self._numbered.parts, x)

    @property
    def is_sparse(self) -> bool:
        """Whether the features are sparse: given so, or mostly zeros."""
        return self._numbered.sparse

    def fill_sparse_features(self, into: ArraySink) -> None:
        """Fills ``x_indptr``, ``x_indices`` and ``x_data``."""
        parts = self._numbered.parts
        fill_sparse(into, lambda: entries_of(parts), self.num_nodes)

    def labels(self) -> npt.NDArray[np.int64] | None:
        """Returns a class per node or several labels ``[N, L]``, −1 where it has none; or None."""
        return None if self._y is None else self._padded(self._y, -1)

    @property
    def num_classes(self) -> int:
        """Number of classes, or of labels per node if there are several; 0 without labels."""
        if self._y is None:
            return 0
        return int(self._y.max()) + 1 if self._y.ndim == 1 else int(self._y.shape[1])

    def masks(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Returns the masks of the split; the dictionary is empty if there is no split."""
        return {name: self._padded(mask, False) for name, mask in self._masks.items()}

    def _read_labels(self) -> npt.NDArray[np.int64] | None:
        matrix, names = self._numbered.matrix, self._numbered.labels
        separator = self._options.label_separator
        if not self._options.label:
            if separator is not None:
                raise GraphError("--label-separator: there are no labels; pass --label")
            self.report.class_names = () if matrix is None else matrix.class_names
            return None if matrix is None else matrix.y
        source, report = self._table("--label"), self.report
        report.columns["label"] = ", ".join(names)
        if len(names) == 1 and separator is None and not is_list(source, names[0]):
            y, report.class_names = read_labels(self._duck, source, names[0])
            self._say_labels(y, "class", "classes")
            found = separator_in(self._duck, names[0]) if report.class_names else ""
            if found:
                report.notes.append(
                    f"nodes: cells of {names[0]!r} contain {found!r}; if it stands between labels, "
                    f"pass --label-separator '{found}'"
                )
            return y
        y, report.class_names = read_several_labels(self._duck, source, names, separator)
        self._say_labels(y, "label per node", "labels per node")
        return y

    def _say_labels(self, y: npt.NDArray[np.int64], one: str, several: str) -> None:
        report, classes = self.report, self.report.class_names
        count = int(y.max()) + 1 if y.ndim == 1 else y.shape[1]
        none = 0 if y.ndim == 1 else int((y == 0).all(axis=1).sum())
        unlabelled = int((~is_labelled(y)).sum())
        shown = ": " + ", ".join(classes[:8]) + (", …" if len(classes) > 8 else "")
        named = ", ".join(map(repr, self._numbered.labels))
        report.notes.append(
            f"nodes: labels in {named}: {counted(count, one, several)}"
            f"{shown if classes else ''}"
            + (f"; {counted(none, 'node')} with none of them" if none else "")
            + (f"; {counted(unlabelled, 'node')} without a label" if unlabelled else "")
        )

    def _read_masks(self) -> dict[str, npt.NDArray[np.bool_]]:
        matrix, name = self._numbered.matrix, self._numbered.split
        if self._options.split is None:
            return {} if matrix is None else matrix.masks
        source = self._table("--split")
        assert name is not None
        found = read_split(self._duck, source, name)
        self.report.columns["split"] = name
        sizes = "/".join(f"{int(mask.sum()):,}" for mask in found.values())
        self.report.notes.append(f"nodes: split in {name!r}: {sizes} train/val/test nodes")
        return found

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
    """Returns the report's lines about merged rows and self-loops."""
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
    return notes
