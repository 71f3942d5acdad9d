"""A graph with types and what changes in it: new nodes and edges, removed ones, other features.

The graph is built anew from its arrays, by the same checks as any other, so this takes as long as
building it did. `graphcl.graphs.changing` changes a plain graph in proportion to the change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Key, Relation
from graphcl.store.reader import MASKS

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TypedDelta:
    """What changes in a graph with types. New nodes of a type with N have the numbers N, N + 1, ….

    Attributes:
        nodes: new nodes by type: ``num_nodes`` of them, and the fields of `Nodes` that are known.
        changed: by type, rows whose fields are replaced, and these fields.
        removed: rows to remove, by type.
        edges: edges to add, by relation: ``edge_index`` ``[2, m]``, sources above targets, and
            ``edge_weight`` and ``edge_features`` where the relation has them. One that is there
            gets the weight that is given here; with features, it is an edge more.
        dropped: ends of edges to remove ``[2, m]``, by relation.
    """

    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changed: Mapping[str, tuple[IntArray, Mapping[str, Any]]] = field(default_factory=dict)
    removed: Mapping[str, IntArray] = field(default_factory=dict)
    edges: Mapping[Key, Mapping[str, Any]] = field(default_factory=dict)
    dropped: Mapping[Key, IntArray] = field(default_factory=dict)


def rebuild(graph: Graph, delta: TypedDelta) -> Graph:
    """Returns the graph that a change makes of another.

    Nodes that stay keep their order, and new ones come after them.

    Raises:
        GraphError: the change does not fit: a type would be empty, an edge to remove is not there,
            or one to add has a removed end.
    """
    nodes: dict[str, Any] = {}
    number: dict[str, IntArray] = {}
    for name, own in graph.nodes.items():
        stays = np.ones(own.num_nodes, bool)
        stays[delta.removed.get(name, [])] = False
        new = delta.nodes.get(name, {})
        count = int(new.get("num_nodes", 0))
        if not stays.any() and not count:
            raise GraphError(f"{graph.name}: every node of type {name!r} would be removed")
        number[name] = np.full(own.num_nodes + count, -1, np.int64)
        number[name][: own.num_nodes][stays] = np.arange(stays.sum())
        number[name][own.num_nodes :] = stays.sum() + np.arange(count)
        nodes[name] = _nodes(own, stays, new, count, delta.changed.get(name))
    relations = {
        key: _edges(one, number[one.source], number[one.target], delta)
        for key, one in graph.relations.items()
    }
    return Graph.from_edges(nodes, relations, name=graph.name)


def _nodes(
    own: Nodes, stays: Any, new: Mapping[str, Any], count: int, changed: Any
) -> dict[str, Any]:
    """Returns the fields of a type after the change; what new nodes lack is empty."""
    found: dict[str, Any] = {"num_nodes": int(stays.sum()) + count}
    found |= {"class_names": own.class_names, "preparation": own.preparation}
    rows: IntArray
    other: Mapping[str, Any]
    nothing: dict[str, Any] = {}
    rows, other = changed or (np.zeros(0, np.int64), nothing)
    ids = _ids(own, stays, new.get("node_ids"), count)
    found |= {} if ids is None else {"node_ids": ids}
    for name in ("x", "y", *MASKS):
        values: Any = getattr(own, name)
        if values is None:
            continue
        if name in other and len(rows):
            values = _replaced(values, rows, other[name])
        kept = values[np.flatnonzero(stays)]
        if not count:
            found[name] = kept
        elif name in new:
            found[name] = _stacked(kept, new[name])
        elif name == "x":
            raise GraphError(f"type {own.name!r}: new nodes lack {name}")
        else:
            empty = -1 if name == "y" else False
            found[name] = np.concatenate([kept, np.full((count, *kept.shape[1:]), empty)])
    return found


def _ids(own: Nodes, stays: Any, new: Any, count: int) -> Any:
    """Returns the ids after the change; None if they are the rows. Nodes that stay keep theirs.

    Numbers and texts together are texts.
    """
    old: Any = np.arange(own.num_nodes) if own.node_ids is None else np.asarray(own.node_ids[:])
    more = np.arange(own.num_nodes, own.num_nodes + count) if new is None else np.asarray(new)
    if new is None and count and own.node_ids is not None:
        raise GraphError(f"type {own.name!r}: new nodes lack ids")
    kept = old[np.flatnonzero(stays)]
    if not count:
        ids = kept
    elif old.dtype.kind in "iu" and more.dtype.kind in "iu":
        ids = np.concatenate([kept, more])
    else:
        ids = np.empty(len(kept) + count, object)
        ids[:] = [str(one) for one in [*kept.tolist(), *more.tolist()]]
    plain = own.node_ids is None and ids.dtype.kind in "iu"
    return None if plain and np.array_equal(ids, np.arange(len(ids))) else ids


def _replaced(values: Any, rows: IntArray, given: Any) -> Any:
    if scipy.sparse.issparse(values):
        changed = scipy.sparse.lil_array(values)
        changed[rows] = given
        return scipy.sparse.csr_array(changed)
    changed = np.array(values)
    changed[rows] = given
    return changed


def _stacked(first: Any, second: Any) -> Any:
    if scipy.sparse.issparse(first):
        return scipy.sparse.vstack([first, scipy.sparse.csr_array(second)], format="csr")
    return np.concatenate([np.asarray(first), np.asarray(second)])


def _edges(
    relation: Relation, sources: IntArray, targets: IntArray, delta: TypedDelta
) -> dict[str, Any]:
    """Returns the edges of a relation after the change, each once, in new numbers."""
    where = f"relation {':'.join(relation.key)}"
    added = delta.edges.get(relation.key, {})
    ends, once = relation.edge_index(), np.arange(len(relation.indices))
    if relation.undirected:
        once = np.flatnonzero(ends[0] < ends[1])
        ends = ends[:, once]
    new = np.asarray(added.get("edge_index", np.zeros((2, 0))), np.int64).reshape(2, -1)
    codes = _codes(ends, len(targets), undirected=relation.undirected)
    gone = _codes(
        np.asarray(delta.dropped.get(relation.key, np.zeros((2, 0), np.int64))),
        len(targets),
        undirected=relation.undirected,
    )
    if not np.isin(gone, codes).all():
        raise GraphError(f"{where}: an edge to remove is not there")
    stays = ~np.isin(codes, gone)
    if relation.edge_features is None:  # an edge that is given again has the weight it is given
        stays &= ~np.isin(codes, _codes(new, len(targets), undirected=relation.undirected))
    stays &= (sources[ends[0]] >= 0) & (targets[ends[1]] >= 0)
    joined = np.concatenate([ends[:, stays], new], axis=1)
    joined = np.stack([sources[joined[0]], targets[joined[1]]])
    if (joined < 0).any():
        raise GraphError(f"{where}: an edge is added to a node that is removed")
    found: dict[str, Any] = {"edge_index": joined, "preparation": relation.preparation}
    if relation.source == relation.target:
        found["undirected"] = relation.undirected
    for name in ("edge_weight", "edge_features"):
        values = getattr(relation, name)
        if values is not None:
            if name not in added and new.shape[1]:
                raise GraphError(f"{where}: its edges have {name}; give them for new ones, too")
            more = added.get(name, values[:0])
            found[name] = np.concatenate([values[once][stays], np.asarray(more, np.float32)])
        elif added.get(name) is not None:
            raise GraphError(f"{where}: its edges have no {name}; leave them out")
    return found


def _codes(ends: IntArray, targets: int, *, undirected: bool) -> IntArray:
    """Returns a number for each pair of ends; of an undirected one, whichever comes first."""
    if undirected:
        ends = np.sort(ends, axis=0)
    found: IntArray = ends[0].astype(np.int64) * targets + ends[1].astype(np.int64)
    return found
