"""A graph and what changes in it: new nodes and edges, removed ones, other features.

Nodes that stay keep their order, and new ones come after them. So sums over neighbours keep their
order too, and the embedding of a node whose surroundings did not change keeps its bits.

Nothing here sorts the graph: entries are found by binary search in their rows, and indices are
copied once. Of 20 million entries that takes a tenth of a second. Features that are mapped from a
file are not copied: see `graphcl.files.patched`.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, counted
from graphcl.files.patched import overlay
from graphcl.graphs.graph import Graph
from graphcl.store.columns import ScaledFeatures
from graphcl.store.writer import row_levels

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
_NONE = np.zeros(0, np.int64)
_NO_PAIRS = np.zeros((0, 2), np.int64)


@dataclass(frozen=True, eq=False)
class Delta:
    """What changes in a graph of N nodes. New nodes have the numbers N, N + 1, ….

    Attributes:
        x: features of the new nodes, ``[n, P]`` float32, dense or CSR; None if there are none.
        changed: nodes that get other features, each once.
        changed_x: these features, ``[len(changed), P]``.
        removed: nodes to remove, each once.
        added: edges ``[m, 2]``, each once, in any direction. One that is there stays, with the
            weight that is given here.
        weight: float32, of `added`; None if edges have no weights.
        dropped: edges to remove ``[k, 2]``. They are removed before others are added.
    """

    x: Any = None
    changed: IntArray = field(default_factory=_NONE.copy)
    changed_x: Any = None
    removed: IntArray = field(default_factory=_NONE.copy)
    added: IntArray = field(default_factory=_NO_PAIRS.copy)
    weight: FloatArray | None = None
    dropped: IntArray = field(default_factory=_NO_PAIRS.copy)

    @property
    def num_new(self) -> int:
        """Number of new nodes."""
        return 0 if self.x is None else int(self.x.shape[0])


class Changed(NamedTuple):
    """A graph after a change; without labels, masks and ids, which are the caller's.

    Attributes:
        graph: the new graph.
        kept: the old rows that stay, ascending; they are the first rows of the new graph.
        moved: rows of the new graph that are new or have other features.
        rewired: rows of the new graph that are new or have other edges.
    """

    graph: Graph
    kept: IntArray
    moved: IntArray
    rewired: IntArray


def change_graph(graph: Graph, delta: Delta) -> Changed:
    """Returns the graph that a change makes of `graph`, in memory.

    Raises:
        GraphError: the change does not fit the graph: no node would be left, an edge to remove is
            not there, or one to add has a removed end.
    """
    graph.check()
    size, new = graph.num_nodes, delta.num_new
    stays = np.ones(size, bool)
    stays[delta.removed] = False
    kept = np.flatnonzero(stays)
    if len(kept) + new == 0:
        raise GraphError(f"{graph.name}: every node would be removed; a graph has at least one")
    number = np.full(size + new, -1, np.int64)
    number[kept] = np.arange(len(kept))
    number[size:] = len(kept) + np.arange(new)
    if (number[delta.added] < 0).any():
        raise GraphError(f"{graph.name}: an edge is added to a node that is removed")
    edges = _Edges(graph, delta)
    indptr, indices, weight = edges.merged(stays, number, renumbered=len(kept) < size)
    touched = np.unique(number[edges.touched])
    fresh = np.arange(len(kept), len(kept) + new)
    x, moved = _features(graph.x, delta, kept)
    changed = Graph.from_csr(
        indptr=indptr, indices=indices, x=x, edge_weight=weight, name=graph.name
    )
    return Changed(
        changed,
        kept,
        np.union1d(number[moved], fresh),
        np.union1d(touched[touched >= 0], fresh),
    )


def affected_rows(changed: Changed, hops: int) -> list[IntArray]:
    r"""Returns for each layer the rows whose result can differ from the old one, ascending.

    Layer l of a node differs if its own row of layer l − 1 does, or a neighbour's, or its edges:
    :math:`C_l = C_{l-1} \cup N(C_{l-1}) \cup R`. :math:`C_0` are the nodes with other features and
    R those with other edges. No other row is affected.

    Args:
        changed: the graph after its change.
        hops: L, the number of layers.
    """
    graph = changed.graph
    reached = np.zeros(graph.num_nodes, bool)
    reached[changed.moved] = True
    frontier, levels = changed.moved, []
    indptr, indices = np.asarray(graph.indptr), np.asarray(graph.indices)
    for _ in range(hops):
        around = np.zeros_like(reached)
        around[indices[_entries(indptr, frontier)]] = True
        around[changed.rewired] = True
        frontier = np.flatnonzero(around & ~reached)
        reached[frontier] = True
        levels.append(np.flatnonzero(reached))
    return levels


class _Edges:
    """The entries of a graph that a change adds and removes.

    Attributes:
        touched: nodes whose row changes, in the numbers of `Delta`, perhaps several times.
    """

    def __init__(self, graph: Graph, delta: Delta) -> None:
        self._graph = graph
        self._indptr, self._indices = np.asarray(graph.indptr), np.asarray(graph.indices)
        self._gone = _NONE  # places of entries that are removed, ascending
        self.touched: IntArray = _NONE
        self._weight = graph.edge_weight
        self._drop_pairs(delta.dropped)
        self._drop_nodes(delta.removed)
        self._add(delta)

    def _drop_pairs(self, pairs: IntArray) -> None:
        rows, columns = _both(pairs)
        places, there = self._find(rows, columns)
        if not there.all():
            row = int(np.argmin(there))
            raise GraphError(f"no edge joins {rows[row]} and {columns[row]}")
        self._gone = np.unique(places)
        self.touched = np.concatenate([self.touched, rows])

    def _drop_nodes(self, nodes: IntArray) -> None:
        entries = _entries(self._indptr, nodes)
        around = self._indices[entries].astype(np.int64)
        own = np.repeat(nodes, self._indptr[nodes + 1] - self._indptr[nodes])
        self._gone = np.unique(np.concatenate([self._gone, entries, self._find(around, own)[0]]))
        self.touched = np.concatenate([self.touched, around])

    def _add(self, delta: Delta) -> None:
        rows, columns = _both(delta.added)
        weight = None if delta.weight is None else np.concatenate([delta.weight, delta.weight])
        places, there = self._find(rows, columns)
        old = places[there]
        changes = np.isin(old, self._gone)  # removed and added again
        if weight is not None and self._weight is not None:
            changes |= self._weight[old] != weight[there]
            if changes.any():
                self._weight = np.array(self._weight)
                self._weight[old] = weight[there]
        self._gone = np.setdiff1d(self._gone, old, assume_unique=False)
        self.touched = np.concatenate([self.touched, rows[there][changes], rows[~there]])
        order = np.lexsort((columns[~there], rows[~there]))
        self._rows, self._columns = rows[~there][order], columns[~there][order]
        self._places = places[~there][order]
        self._new_weight = None if weight is None else weight[~there][order]

    def _find(self, rows: IntArray, columns: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Returns the place of each entry, or that where it would be, and whether it is there."""
        size, end = self._graph.num_nodes, len(self._indices)
        old = rows < size
        known = np.where(old, rows, 0)
        low = np.where(old, self._indptr[known], end)
        stop = high = np.where(old, self._indptr[known + 1], end)
        while (open_ := low < high).any():  # a binary search in every row at once
            middle = (low + high) // 2
            before = open_ & (self._indices[np.minimum(middle, max(end - 1, 0))] < columns)
            low = np.where(before, middle + 1, low)
            high = np.where(open_ & ~before, middle, high)
        there = low < stop
        there[there] = self._indices[low[there]] == columns[there]
        return low, there

    def merged(
        self, stays: npt.NDArray[np.bool_], number: IntArray, *, renumbered: bool
    ) -> tuple[IntArray, Any, FloatArray | None]:
        """Returns the CSR arrays of the new graph: pointers, indices and weights."""
        gone, size = self._gone, len(stays)
        into = self._places - np.searchsorted(gone, self._places) + np.arange(len(self._places))
        degree = np.zeros(len(number), np.int64)
        degree[:size] = np.diff(self._indptr)
        of_gone = np.searchsorted(self._indptr, gone, side="right") - 1
        degree -= np.bincount(of_gone, minlength=len(number))
        degree += np.bincount(self._rows, minlength=len(number))
        there = np.concatenate([stays, np.ones(len(number) - size, bool)])
        indptr = np.concatenate([[0], degree[there].cumsum()])
        total = len(self._indices) - len(gone) + len(into)
        wide = self._indices.dtype.itemsize > 4 or len(number) >= 1 << 31
        kind: Any = np.int64 if wide else np.int32
        # Up to the first entry that is removed or added, all stay where they are.
        first = int(min(min(part, default=total) for part in (gone[:1], into[:1])))
        own = np.ones(total - first, bool)
        own[into - first] = False

        def joined(old: Any, new: Any, kind: Any) -> Any:
            out = np.empty(total, kind)
            out[:first] = old[:first]
            rest = np.delete(old[first:], gone - first) if len(gone) else old[first:]
            out[first:][own] = rest
            out[into] = new
            return out

        indices = joined(self._indices, self._columns, kind)
        if renumbered:
            indices = number[indices].astype(kind)
        weight = None
        if self._weight is not None or self._new_weight is not None:
            old_weight = self._weight
            if old_weight is None:
                old_weight = np.ones(len(self._indices), np.float32)
            new_weight: Any = 1 if self._new_weight is None else self._new_weight
            weight = joined(old_weight, new_weight, np.float32)
        return indptr, indices, weight


def _both(pairs: IntArray) -> tuple[IntArray, IntArray]:
    """Returns both directions of edges."""
    rows = np.concatenate([pairs[:, 0], pairs[:, 1]])
    return rows, np.concatenate([pairs[:, 1], pairs[:, 0]])


def _entries(indptr: IntArray, nodes: IntArray) -> IntArray:
    """Returns the places of all entries of the nodes' rows."""
    starts = indptr[nodes]
    counts = indptr[nodes + 1] - starts
    found: IntArray = np.repeat(starts - (counts.cumsum() - counts), counts)
    found += np.arange(len(found))
    return found


def _features(x: Any, delta: Delta, kept: IntArray) -> tuple[Any, IntArray]:
    """Returns the features of the new graph, and the old rows whose features differ.

    A row that is given again as it was has not changed.
    """
    changed, given = delta.changed, delta.changed_x
    if not len(changed) and not delta.num_new and len(kept) == x.shape[0]:
        return x, changed
    if scipy.sparse.issparse(x):
        parts = [x] + [scipy.sparse.csr_array(one) for one in (delta.x, given) if one is not None]
        table = scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))
        table.sum_duplicates()
        size, new = x.shape[0], delta.num_new
        source = np.arange(size)
        source[changed] = size + new + np.arange(len(changed))
        rows = np.concatenate([source[kept], size + np.arange(new)])
        differs = _differs(table[changed], table[source[changed]])
        return scipy.sparse.csr_array(table[rows].astype(np.float32)), changed[differs]
    if isinstance(x, ScaledFeatures):
        return _scaled(x, delta, kept)
    differs, parts = np.zeros(len(changed), bool), [np.zeros((0, x.shape[1]), x.dtype)]
    with np.errstate(over="ignore"):
        if len(changed):
            parts.append(_dense(given).astype(x.dtype))
            differs = (np.asarray(x[changed]) != parts[-1]).any(axis=1)
        if delta.num_new:
            parts.append(_dense(delta.x).astype(x.dtype))
    values = np.concatenate(parts)
    if x.dtype == np.float16 and not np.isfinite(values).all():
        raise GraphError("a new feature does not fit in float16, which the graph's store has")
    return _with_rows(x, kept, changed, delta.num_new, values), changed[differs]


def _with_rows(table: Any, kept: IntArray, changed: IntArray, new: int, values: Any) -> Any:
    """Returns the rows that stay, some with other values, and new rows below them."""
    if len(kept) < len(table):
        table, changed = np.asarray(table[kept]), np.searchsorted(kept, changed)
    rows = np.concatenate([changed, len(table) + np.arange(new)])
    return overlay(table, rows, values)


def _scaled(x: ScaledFeatures, delta: Delta, kept: IntArray) -> tuple[ScaledFeatures, IntArray]:
    """The same of features in eight bits: new rows get the levels of the old columns."""
    changed, given = (
        delta.changed,
        [_dense(one) for one in (delta.changed_x, delta.x) if one is not None],
    )
    rows = np.concatenate([np.zeros((0, x.shape[1]), np.float32), *given])
    levels, scales = row_levels(rows, x.scale) if len(rows) else (rows.astype(np.int8), rows[:, 0])
    old = np.ones(x.shape[0], np.float32) if x.row_scale is None else np.asarray(x.row_scale)
    number = len(changed)
    differs = (np.asarray(x.values[changed]) != levels[:number]).any(axis=1)
    differs |= old[changed] != scales[:number]
    values = _with_rows(x.values, kept, changed, delta.num_new, levels)
    scale = _with_rows(old, kept, changed, delta.num_new, scales)
    return ScaledFeatures(values, x.scale, scale if (scale > 1).any() else None), changed[differs]


def _dense(x: Any) -> FloatArray:
    dense: FloatArray = x.toarray() if scipy.sparse.issparse(x) else np.asarray(x)
    return dense


def _differs(first: Any, second: Any) -> npt.NDArray[np.bool_]:
    """Returns which rows of two sparse tables differ."""
    away = scipy.sparse.csr_array(first != second)
    found: npt.NDArray[np.bool_] = np.diff(away.indptr) > 0
    return found


def check_pairs(graph: Graph, pairs: IntArray, names: Any, table: str) -> None:
    """Refuses edges to remove that the graph does not have.

    Args:
        graph: the graph.
        pairs: rows ``[k, 2]``.
        names: returns the id of a row.
        table: what the message calls the list of edges.

    Raises:
        GraphError: some are not there; the message names the first.
    """
    edges = _Edges(graph, Delta())
    there = edges._find(pairs[:, 0], pairs[:, 1])[1]
    if not there.all():
        missing = int((~there).sum())
        first, second = (names(int(row)) for row in pairs[int(np.argmin(there))])
        are = counted(missing, "edge is", "edges are")
        raise GraphError(f"{table}: {are} not in the graph, first {first!r} – {second!r}")
