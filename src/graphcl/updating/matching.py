"""From tables that name nodes by id to the grown graph, with its ids, labels and split."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, counted
from graphcl.graphs.changing import Changed, Delta, change_graph, check_pairs
from graphcl.graphs.graph import Graph
from graphcl.graphs.structural import FEATURE_NAMES, structural_features
from graphcl.graphs.validation import is_labelled
from graphcl.store.reader import MASKS
from graphcl.tabular.new_rows import NewTables, read_ids, read_new, read_pairs
from graphcl.tabular.options import TableOptions
from graphcl.updating.ids import NodeIds

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Grown:
    """A graph that has changed, and how.

    Attributes:
        changed: the new graph, with ids, labels and split, and the rows that differ.
        counts: how many nodes and edges are new, removed, changed.
        notes: lines for the user about the tables.
    """

    changed: Changed
    counts: dict[str, int]
    notes: list[str]


def grow(
    graph: Graph,
    options: TableOptions,
    *,
    edges: Any = None,
    remove_nodes: Any = None,
    remove_edges: Any = None,
) -> Grown:
    """Returns the graph with what tables add to it, change in it and remove from it.

    Args:
        graph: the old graph.
        options: how the tables are read; `nodes` is the table of new and changed nodes.
        edges: a list of new edges, or None.
        remove_nodes: a list of nodes to remove, or None.
        remove_edges: a list of edges to remove, or None.

    Raises:
        GraphError: a table is wrong, or does not fit the graph.
    """
    if graph.splits is not None:
        graph = graph.split(0)
    structural = _structural(graph, options)
    width = graph.num_features - (len(FEATURE_NAMES) if structural else 0)
    if edges is not None and graph.edge_weight is not None and options.weight is None:
        raise GraphError("update: the graph's edges have weights; name their column: --weight")
    if options.weight is not None and graph.edge_weight is None:
        raise GraphError("update: the graph's edges have no weights; leave --weight out")
    tables = read_new(edges, options, width=width)
    ids = NodeIds(graph)
    tables.ids = ids.alike(tables.ids)
    rows = ids.find(tables.ids)
    if options.unknown_edges == "drop":
        rows = _without_unknown(tables, rows)
    gone = np.zeros(0, np.int64)
    if remove_nodes is not None:
        listed, said = read_ids(remove_nodes, options)
        gone = ids.require(listed, _named(remove_nodes, "remove_nodes"))
        tables.notes += said
    dropped = np.zeros((0, 2), np.int64)
    if remove_edges is not None:
        table = _named(remove_edges, "remove_edges")
        cut = read_pairs(remove_edges, options)
        dropped = ids.require(cut.ids, table)[cut.pairs].reshape(-1, 2)
        tables.notes += cut.notes
        check_pairs(graph, dropped, ids.name, table)
    _refuse(ids, tables, rows, gone, edges)
    new = rows[: tables.rows] < 0
    notes = tables.notes + ids.notes(tables.ids[: tables.rows][new])
    size = graph.num_nodes
    rows[: tables.rows][new] = size + np.arange(int(new.sum()))
    delta = Delta(
        x=_features(graph, tables, new, structural=structural) if new.any() else None,
        changed=np.sort(rows[: tables.rows][~new]) if tables.x is not None else rows[:0],
        changed_x=_changed(graph, tables, rows, new) if tables.x is not None else None,
        removed=gone,
        added=rows[tables.pairs].reshape(-1, 2),
        weight=tables.weight,
        dropped=dropped,
    )
    changed = change_graph(graph, delta)
    if structural:
        changed = _with_structural(graph, changed)
    fields = _labels(graph, tables, rows, changed.kept) | _masks(graph, tables, rows, changed.kept)
    fields["node_ids"] = ids.grown(changed.kept, tables.ids[: tables.rows][new])
    grown = changed.graph.replace(
        **fields,
        preparation=graph.preparation,
        self_loops_removed=graph.self_loops_removed,
    )
    before, after = graph.num_edges, grown.num_edges
    counts = {
        "new_nodes": int(new.sum()),
        "removed_nodes": len(gone),
        "changed_nodes": int((changed.moved < len(changed.kept)).sum()),
        "edges_before": before,
        "edges_after": after,
    }
    return Grown(changed._replace(graph=grown), counts, notes)


def _named(given: Any, name: str) -> str:
    return given if isinstance(given, str) else name


def _without_unknown(tables: NewTables, rows: IntArray) -> IntArray:
    """Leaves out edges that name a node that is nowhere; returns the rows of the other nodes."""
    lost = rows < 0
    lost[: tables.rows] = False  # new nodes
    if not lost.any():
        return rows
    kept = ~lost[tables.pairs].any(axis=1)
    named = counted(int((~kept).sum()), "edge names", "edges name")
    nodes = counted(int(lost.sum()), "unknown node")
    tables.notes.append(f"edges: {named} {nodes}: left out")
    tables.pairs = (np.cumsum(~lost) - 1)[tables.pairs[kept]]
    tables.weight = None if tables.weight is None else tables.weight[kept]
    tables.ids = tables.ids[~lost]
    return rows[~lost]


def _refuse(ids: NodeIds, tables: NewTables, rows: IntArray, gone: IntArray, edges: Any) -> None:
    """Refuses what cannot be meant: edges to unknown nodes, new nodes without a column."""
    unknown = rows[tables.rows :] < 0
    if unknown.any():
        ids.refuse_unknown(tables.ids[tables.rows :][unknown], _named(edges, "edges"))
    both = np.isin(rows, gone) & (rows >= 0)
    if both.any():
        which = f"{str(tables.ids[both][0])!r}"
        what = "nodes" if int(np.argmax(both)) < tables.rows else "edges"
        raise GraphError(f"update: {which} is to be removed, and is named in the new {what}")
    new = rows[: tables.rows] < 0
    if new.any() and tables.absent:
        column, first = tables.absent[0], str(tables.ids[: tables.rows][new][0])
        lacking = f"has no column {column!r}" if column[0] != "-" else f"comes without {column}"
        raise GraphError(
            f"{tables.table}: {lacking}, which the model was trained on; nodes that the graph has "
            f"keep their values, but {first!r} is new"
        )


def _features(graph: Graph, tables: NewTables, new: Array, *, structural: bool) -> Any:
    """Returns the features of new nodes; structural ones are computed later."""
    number, width = int(new.sum()), graph.num_features
    x: Any = np.zeros((number, 0), np.float32) if tables.x is None else tables.x[new]
    if structural:
        wide = np.zeros((number, width), np.float32)
        wide[:, : x.shape[1]] = x.toarray() if scipy.sparse.issparse(x) else x
        return wide
    return x


def _changed(graph: Graph, tables: NewTables, rows: IntArray, new: Array) -> Any:
    """Returns the features of known nodes in the order of their rows, complete."""
    order = np.argsort(rows[: tables.rows][~new])
    x = tables.x[np.flatnonzero(~new)[order]]
    places = rows[: tables.rows][~new][order]
    if len(tables.features) == graph.num_features:
        return x
    if scipy.sparse.issparse(graph.x):
        old = scipy.sparse.lil_array(graph.x[places])
        old[:, tables.features] = x
        return scipy.sparse.csr_array(old)
    kept = graph.x[places]
    old = np.array(kept, dtype=np.float32)
    old[:, tables.features] = x.toarray() if scipy.sparse.issparse(x) else x
    return old


def _structural(graph: Graph, options: TableOptions) -> bool:
    """Returns whether the last features of a graph are computed from its edges."""
    columns = len(options.preparation.features) if options.preparation is not None else 0
    said = options.features in ("structural", "both")
    more = graph.num_features - columns
    if not said and (options.preparation is None or more != len(FEATURE_NAMES)):
        return False
    if not isinstance(graph.x, np.ndarray) or graph.x.dtype != np.float32:
        raise GraphError(
            f"{graph.name}: features that are computed from edges are updated in float32 alone"
        )
    found = structural_features(np.asarray(graph.indptr), np.asarray(graph.indices))
    return bool(np.array_equal(found, graph.x[:, -len(FEATURE_NAMES) :]))


def _with_structural(graph: Graph, changed: Changed) -> Changed:
    """Computes the features that come from edges again; rows where they differ have moved."""
    last = slice(graph.num_features - len(FEATURE_NAMES), None)
    found = structural_features(changed.graph.indptr, changed.graph.indices)
    x = np.array(changed.graph.x)
    x[:, last] = found
    kept = len(changed.kept)
    differs = (found[:kept] != np.asarray(graph.x)[changed.kept, last]).any(axis=1)
    moved = np.union1d(changed.moved, np.flatnonzero(differs))
    return changed._replace(graph=changed.graph.replace(x=x), moved=moved)


def _labels(graph: Graph, tables: NewTables, rows: IntArray, kept: IntArray) -> dict[str, Any]:
    """Returns the labels of the grown graph; new classes come after the known ones.

    Raises:
        GraphError: the table's labels are of another kind than the graph's.
    """
    names, given = list(graph.class_names), tables.y
    total = graph.num_nodes + int((rows[: tables.rows] >= graph.num_nodes).sum())
    places = np.concatenate([kept, np.arange(graph.num_nodes, total)])
    if graph.y is None and given is None:
        return {}
    old = graph.y
    if old is not None and given is not None and old.ndim != given.ndim:
        raise GraphError(f"{tables.table}: its labels are of another kind than the graph's")
    single = (given if old is None else old).ndim == 1  # type: ignore[union-attr]
    if given is not None:
        numbers = range(int(given.max(initial=-1)) + 1 if single else given.shape[1])
        called = list(tables.class_names) or [str(one) for one in numbers]
        if not names and (old is None and tables.class_names):
            names = list(tables.class_names)
        if names:
            names += [one for one in called if one not in names]
            code = np.array([names.index(one) for one in called], np.int64)
        elif tables.class_names:
            try:
                code = np.array([int(one) for one in called], np.int64)
            except ValueError:
                kinds = "the graph's classes are numbers"
                raise GraphError(f"{tables.table}: label {called[0]!r}; {kinds}") from None
        else:
            code = np.array(numbers, np.int64)
        if single:
            given = np.where(given >= 0, code[given], -1) if len(code) else given
        else:
            given = _widened(given, code, len(names) or len(code))
    if single:
        y = np.full(total, -1, np.int64)
    else:
        width = max(one.shape[1] for one in (old, given) if one is not None)
        y = np.full((total, width), -1, np.int64)
    for some, one in ((slice(graph.num_nodes), old), (rows[: tables.rows], given)):
        if one is not None:
            y[some] = one if single else _widened(one, np.arange(one.shape[1]), width)
    return {"y": y[places], "class_names": tuple(names)}


def _widened(y: IntArray, columns: IntArray, width: int) -> IntArray:
    """Returns several labels per node among more of them; no labelled node has the new ones."""
    wide = np.zeros((len(y), width), np.int64)
    wide[:, columns] = y
    wide[~is_labelled(y)] = -1
    return wide


def _masks(graph: Graph, tables: NewTables, rows: IntArray, kept: IntArray) -> dict[str, Any]:
    """Returns the split of the grown graph; new nodes without one are in no part of it."""
    new = int((rows[: tables.rows] >= graph.num_nodes).sum())
    total = graph.num_nodes + new
    places = np.concatenate([kept, np.arange(graph.num_nodes, total)])
    found = {}
    for name in MASKS:
        old, given = getattr(graph, name), tables.masks.get(name)
        if old is None and given is None:
            continue
        mask = np.zeros(total, bool)
        if old is not None:
            mask[: len(old)] = old
        if given is not None:
            mask[rows[: tables.rows]] = given
        found[name] = mask[places]
    return found
