"""A graph and what changes in it: new nodes and edges, removed ones, other features.

`change_graph` merges new entries into the CSR arrays of each relation that changes, in one pass
over them; for ten million entries that takes a tenth of a second. Features that are mapped from a
file are not copied: see `graphcl.files.patched`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from graphcl.arrays import Booleans, Floats, Integers
from graphcl.errors import GraphError, counted, demand
from graphcl.files.patched import overlay
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import entries_of
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Key, Relation
from graphcl.store.columns import entry_places

_NONE = np.zeros(0, np.int64)
_NO_PAIRS = np.zeros((0, 2), np.int64)


@dataclass(frozen=True, eq=False)
class NodeDelta:
    """What changes in a type of N nodes. New ones have the numbers N, N + 1, ….

    Attributes:
        new: how many are new.
        x: their features, ``[new, P]`` float32, dense or CSR; None if the type has none.
        changed: nodes that get other features, each once.
        changed_x: these features, ``[len(changed), P]``.
        removed: nodes to remove, each once.
    """

    new: int = 0
    x: Any = None
    changed: Integers = field(default_factory=_NONE.copy)
    changed_x: Any = None
    removed: Integers = field(default_factory=_NONE.copy)


@dataclass(frozen=True, eq=False)
class EdgeDelta:
    """What changes in a relation.

    Attributes:
        added: edges ``[m, 2]``, source and target. One that is there stays, with the weight that is
            given here; where edges have features, it is an edge more.
        weight: float32, of `added`; None if edges have no weights.
        features: float32 ``[m, features]`` of `added`; None if edges have none.
        dropped: edges to remove ``[k, 2]``. They are removed before others are added.
    """

    added: Integers = field(default_factory=_NO_PAIRS.copy)
    weight: Floats | None = None
    features: Floats | None = None
    dropped: Integers = field(default_factory=_NO_PAIRS.copy)


@dataclass(frozen=True, eq=False)
class Delta:
    """What changes in a graph, by type and by relation."""

    nodes: Mapping[str, NodeDelta] = field(default_factory=dict)
    edges: Mapping[Key, EdgeDelta] = field(default_factory=dict)


class Changed(NamedTuple):
    """A graph after a change; without labels, masks and ids, which are the caller's.

    Attributes:
        graph: the new graph.
        kept: by type, the old rows that stay, ascending; they are the first rows of the new graph.
        moved: by type, rows of the new graph that are new or have other features.
        rewired: by type, rows of the new graph that are new or have other edges.
    """

    graph: Graph
    kept: dict[str, Integers]
    moved: dict[str, Integers]
    rewired: dict[str, Integers]


def change_graph(graph: Graph, delta: Delta) -> Changed:
    """Returns the graph that a change makes of `graph`, in memory.

    Nodes that stay keep their order, and new ones come after them.

    Raises:
        GraphError: the change does not fit the graph: no node of a type would be left, an edge to
            remove is not there, or one to add has a removed end.
    """
    graph.check()
    kept, moved = dict[str, Integers](), dict[str, Integers]()
    nodes, numbers = dict[str, Nodes](), dict[str, Integers]()
    touched: dict[str, list[Integers]] = {}
    for name, own in graph.nodes.items():
        one, size = delta.nodes.get(name, NodeDelta()), own.num_nodes
        stays = np.ones(size, bool)
        stays[one.removed] = False
        kept[name] = np.flatnonzero(stays)
        first = len(kept[name])
        if first + one.new == 0:
            of_type = "" if len(graph.nodes) == 1 else f"of type {name!r} "
            raise GraphError(
                f"{graph.name}: every node {of_type}would be removed; a graph has at least one"
            )
        number = numbers[name] = np.full(size + one.new, -1, np.int64)
        number[kept[name]] = np.arange(first)
        number[size:] = first + np.arange(one.new)
        x, others = own.x, _NONE
        if x is not None:
            demand(
                not one.new or one.x is not None,
                f"{graph.name}: new nodes of type {name!r} lack features",
            )
            x, others = _features(x, one, kept[name])
        fresh = number[size:]
        moved[name], touched[name] = np.union1d(number[others], fresh), [fresh]
        nodes[name] = Nodes(name, first + one.new, x, preparation=own.preparation)
    relations = {}
    for key, relation in graph.relations.items():
        own_delta = delta.edges.get(key, EdgeDelta())
        relations[key], ends = _change_relation(relation, own_delta, numbers, graph.name)
        for end, rows in ends:
            touched[end].append(numbers[end][rows])
    rewired = {name: np.unique(np.concatenate(rows)) for name, rows in touched.items()}
    rewired = {name: rows[rows >= 0] for name, rows in rewired.items()}
    return Changed(Graph(nodes, relations, graph.name), kept, moved, rewired)


def affected_rows(changed: Changed, hops: int) -> list[dict[str, Integers]]:
    r"""Returns for each layer the rows by type whose result can differ from the old one, ascending.

    Layer l of a node differs if its own row of layer l − 1 does, or a neighbour's, or its edges:
    :math:`C_l = C_{l-1} \cup N(C_{l-1}) \cup R`. :math:`C_0` are the nodes with other features and
    R those with other edges. No other row is affected.

    Args:
        changed: the graph after its change; `moved` also has rows whose features are made of those
            of others.
        hops: L, the number of layers.
    """
    graph = changed.graph
    reached = {name: np.zeros(one.num_nodes, bool) for name, one in graph.nodes.items()}
    frontier, levels = changed.moved, []
    for name, rows in frontier.items():
        reached[name][rows] = True
    for _ in range(hops):
        around = {name: np.zeros_like(mask) for name, mask in reached.items()}
        for relation in graph.relations.values():
            indptr, indices = np.asarray(relation.indptr), np.asarray(relation.indices)
            around[relation.source][indices[entries_of(indptr, frontier[relation.target])]] = True
            if not relation.undirected and len(frontier[relation.source]):
                sent = np.zeros(len(reached[relation.source]), bool)
                sent[frontier[relation.source]] = True
                around[relation.target][relation.targets()[sent[indices]]] = True
        for name, rows in changed.rewired.items():
            around[name][rows] = True
        frontier = {name: np.flatnonzero(around[name] & ~mask) for name, mask in reached.items()}
        for name, rows in frontier.items():
            reached[name][rows] = True
        levels.append({name: np.flatnonzero(mask) for name, mask in reached.items()})
    return levels


def _change_relation(
    relation: Relation, delta: EdgeDelta, numbers: Mapping[str, Integers], named: str
) -> tuple[Relation, list[tuple[str, Integers]]]:
    """Returns a relation after a change, and the nodes whose edges change.

    Args:
        relation: as it was.
        delta: what changes in it, in the numbers of `NodeDelta`.
        numbers: by type, the new number of each node, −1 if it is removed.
        named: the graph's name.

    Returns:
        The relation; and the types of both ends, each with its nodes in the numbers of `NodeDelta`,
        perhaps several times.
    """
    rows_of, columns_of = numbers[relation.target], numbers[relation.source]
    indptr, indices = np.asarray(relation.indptr), np.asarray(relation.indices)
    size, weight = len(indptr) - 1, relation.edge_weight
    pairs, values = _added_entries(relation, delta, named)
    columns, rows = pairs.T
    demand(
        not ((rows_of[rows] < 0).any() or (columns_of[columns] < 0).any()),
        f"{named}: an edge is added to a node that is removed",
    )
    gone = _dropped(relation, delta.dropped, rows_of, columns_of)
    first, last = find_entries(relation, rows, columns)
    # Where edges have features, two may have the same ends.
    again = (first < last) & (relation.edge_features is None)
    old = first[again]
    changes = np.isin(old, gone)  # removed and added again
    if weight is not None and "edge_weight" in values:
        given = values["edge_weight"][again]
        changes |= weight[old] != given
        if changes.any():
            weight = np.array(weight)
            weight[old] = given
    gone = np.setdiff1d(gone, old)
    gone_rows = np.searchsorted(indptr, gone, side="right") - 1
    ends = ((gone_rows, rows), (indices[gone].astype(np.int64), columns))
    both = [np.concatenate([left, some[again][changes], some[~again]]) for left, some in ends]
    touched = list(zip((relation.target, relation.source), both, strict=True))
    fresh = np.flatnonzero(~again)
    fresh = fresh[np.lexsort((columns[fresh], rows[fresh]))]
    new_ends = len(rows_of) > size or (columns_of < 0).any() or (rows_of < 0).any()
    if not (new_ends or len(gone) or len(fresh) or weight is not relation.edge_weight):
        return relation, touched
    into = last[fresh] - np.searchsorted(gone, last[fresh])
    degree = np.zeros(len(rows_of), np.int64)
    degree[:size] = np.diff(indptr)
    degree -= np.bincount(gone_rows, minlength=len(rows_of))
    degree += np.bincount(rows[fresh], minlength=len(rows_of))
    wide = indices.dtype.itemsize > 4 or len(columns_of) >= 1 << 31
    kind: Any = np.int64 if wide else np.int32

    def joined(old: Any, new: Any, kind: Any) -> Any:
        left = np.delete(old, gone, 0) if len(gone) else old
        return np.insert(np.asarray(left, kind), into, new, 0)

    fields = {
        name: joined(own, values[name][fresh] if name in values else own[:0], np.float32)
        for name, own in (("edge_weight", weight), ("edge_features", relation.edge_features))
        if own is not None
    }
    fields["indices"] = joined(indices, columns[fresh], kind)
    if (columns_of < 0).any():
        fields["indices"] = columns_of[fields["indices"]].astype(kind)
    fields["indptr"] = np.concatenate([[0], degree[rows_of >= 0].cumsum()])
    found = replace(relation, edge_ids=None, **fields)
    if relation.edge_ids is not None:
        found = replace(found, edge_ids=_edge_ids(found))
    return found, touched


def _added_entries(
    relation: Relation, delta: EdgeDelta, named: str
) -> tuple[Integers, dict[str, Floats]]:
    """Returns the entries of new edges, source and target, and what they have beside.

    An undirected edge has two entries; loops are left out.

    Raises:
        GraphError: they have other values than the relation's edges have.
    """
    pairs = np.asarray(delta.added, np.int64).reshape(-1, 2)
    values = {"edge_weight": delta.weight, "edge_features": delta.features}
    for name, one in values.items():
        has = getattr(relation, name) is not None
        where = f"{named}: relation {':'.join(relation.key)}: its edges have"
        demand(
            not (len(pairs) and has and one is None),
            f"{where} {name}; give them for new ones, too",
        )
        demand(one is None or has, f"{where} no {name}; leave them out")
    found = {name: one for name, one in values.items() if one is not None}
    if relation.source == relation.target:  # a mean has the node itself in it: no loops
        apart = pairs[:, 0] != pairs[:, 1]
        pairs, found = pairs[apart], {name: one[apart] for name, one in found.items()}
    if relation.undirected:
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
        found = {name: np.concatenate([one, one]) for name, one in found.items()}
    return pairs, found


def _dropped(
    relation: Relation, pairs: Integers, rows_of: Integers, columns_of: Integers
) -> Integers:
    """Returns the places of entries that are removed, with an edge or with a node."""
    pairs = np.asarray(pairs, np.int64).reshape(-1, 2)
    if relation.undirected:
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
    first, last = find_entries(relation, pairs[:, 1], pairs[:, 0])
    if (first == last).any():
        source, target = pairs[int(np.argmax(first == last))]
        raise GraphError(f"no edge joins {source} and {target}")
    indptr = np.asarray(relation.indptr)
    lost = np.flatnonzero(rows_of[: len(indptr) - 1] < 0)
    parts = [entry_places(first, last - first), entries_of(indptr, lost)]
    if (columns_of < 0).any():
        parts.append(np.flatnonzero((columns_of < 0)[np.asarray(relation.indices)]))
    return np.unique(np.concatenate(parts))


def find_entries(
    relation: Relation, rows: Integers, columns: Integers
) -> tuple[Integers, Integers]:
    """Returns the places of entries, from and to; where one is not, it would be at both.

    Args:
        relation: any.
        rows: the target of each entry, perhaps a new node.
        columns: its source.
    """
    indptr, size = np.asarray(relation.indptr), len(relation.indptr) - 1
    old = np.unique(rows[rows < size])
    indices = np.asarray(relation.indices[entries_of(indptr, old)], np.int64)
    width = 1 + int(max(columns.max(initial=0), indices.max(initial=0)))
    codes = np.repeat(old, indptr[old + 1] - indptr[old]) * width + indices  # they ascend
    # A place among the entries of these rows becomes one among all.
    moved = indptr[np.minimum(rows, size)] - np.searchsorted(codes, rows * width)
    wanted = rows * width + columns
    first, last = (np.searchsorted(codes, wanted, side=side) for side in ("left", "right"))
    return first + moved, last + moved


def _edge_ids(relation: Relation) -> Integers:
    """Numbers the edges of an undirected relation, where several may have the same ends.

    The first entry from u to v and the first from v to u are one edge, and so are the second ones.
    """
    ends = relation.edge_index()
    starts = np.ones(ends.shape[1], bool)
    starts[1:] = (ends[:, 1:] != ends[:, :-1]).any(axis=0)
    places = np.arange(len(starts))
    nth = places - np.maximum.accumulate(np.where(starts, places, 0))
    order = np.lexsort((nth, *np.sort(ends, axis=0)))
    ids = np.empty(len(order), np.int64)
    ids[order] = places // 2
    return ids


def _features(x: Any, delta: NodeDelta, kept: Integers) -> tuple[Any, Integers]:
    """Returns the features of the new graph, and the old rows whose features differ.

    A row that is given again as it was has not changed.
    """
    changed, given = delta.changed, delta.changed_x
    if not len(changed) and not delta.new and len(kept) == x.shape[0]:
        return x, changed
    if scipy.sparse.issparse(x):
        parts = [x] + [scipy.sparse.csr_array(one) for one in (delta.x, given) if one is not None]
        table = scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))
        table.sum_duplicates()
        size, new = x.shape[0], delta.new
        source = np.arange(size)
        source[changed] = size + new + np.arange(len(changed))
        rows = np.concatenate([source[kept], size + np.arange(new)])
        differs = rows_differ(table[changed], table[source[changed]])
        return scipy.sparse.csr_array(table[rows].astype(np.float32)), changed[differs]
    differs, parts = np.zeros(len(changed), bool), [np.zeros((0, x.shape[1]), x.dtype)]
    with np.errstate(over="ignore"):
        if len(changed):
            parts.append(_dense(given).astype(x.dtype))
            differs = rows_differ(np.asarray(x[changed]), parts[-1])
        if delta.new:
            parts.append(_dense(delta.x).astype(x.dtype))
    values = np.concatenate(parts)
    demand(
        x.dtype != np.float16 or np.isfinite(values).all(),
        "a new feature does not fit in float16, which the graph's store has",
    )
    return _with_rows(x, kept, changed, delta.new, values), changed[differs]


def _with_rows(table: Any, kept: Integers, changed: Integers, new: int, values: Any) -> Any:
    """Returns the rows that stay, some with other values, and new rows below them."""
    if len(kept) < len(table):
        table, changed = np.asarray(table[kept]), np.searchsorted(kept, changed)
    rows = np.concatenate([changed, len(table) + np.arange(new)])
    return overlay(table, rows, values)


def _dense(x: Any) -> Floats:
    return np.asarray(x.toarray() if scipy.sparse.issparse(x) else x)


def rows_differ(first: Any, second: Any) -> Booleans:
    """Returns which rows of two tables differ, both dense or both sparse."""
    away: Any = first != second
    found: Booleans = np.asarray(away.sum(axis=1)).reshape(-1) > 0
    return found


def check_pairs(relation: Relation, pairs: Integers, names: Any, table: str) -> None:
    """Refuses edges to remove that a relation does not have.

    Args:
        relation: of the graph.
        pairs: rows of sources and targets, ``[k, 2]``.
        names: returns the ids of the rows of a pair.
        table: what the message calls the list of edges.

    Raises:
        GraphError: some are not there; the message names the first.
    """
    first, last = find_entries(relation, pairs[:, 1], pairs[:, 0])
    if (first == last).any():
        missing = counted(int((first == last).sum()), "edge is", "edges are")
        source, target = names(pairs[int(np.argmax(first == last))])
        raise GraphError(f"{table}: {missing} not in the graph, first {source!r} – {target!r}")
