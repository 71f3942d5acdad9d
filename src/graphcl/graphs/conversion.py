"""Converts graphs: to PyTorch Geometric's, to plain ones, to ones without needless relations."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Key, Relation
from graphcl.store.header import MASKS

_BLOCK = 1 << 20  # edges that are looked at at a time


def to_pyg(graph: Graph, *, sparse: bool) -> Any:
    """Returns a `Data` with the arrays of a plain graph, a `HeteroData` with those of another."""
    import torch
    from torch_geometric.data import Data, HeteroData

    plain = graph.is_plain
    data: Any = Data() if plain else HeteroData()
    for name, nodes in graph.nodes.items():
        held = data if plain else data[name]
        held.num_nodes = nodes.num_nodes
        _fill(held, nodes, sparse=sparse)
    for key, relation in graph.relations.items():
        held = data if plain else data[key]
        ends = graph.edge_index() if plain else relation.edge_index()
        held.edge_index = torch.from_numpy(ends)
        if relation.edge_weight is not None:
            held.edge_weight = torch.from_numpy(relation.edge_weight.copy())
        if relation.edge_features is not None:
            held.edge_attr = torch.from_numpy(relation.edge_features.copy())
    return data


def _fill(held: Any, nodes: Nodes, *, sparse: bool) -> None:
    """Gives a PyG holder of nodes their features, labels and masks."""
    import torch

    if isinstance(nodes.x, np.ndarray):
        held.x = torch.from_numpy(np.array(nodes.x, dtype=np.float32))
    elif nodes.x is not None:
        csr = (nodes.x.indptr.astype(np.int64), nodes.x.indices.astype(np.int64), nodes.x.data)
        indptr, indices, values = (torch.from_numpy(part.copy()) for part in csr)
        x = torch.sparse_csr_tensor(indptr, indices, values, size=nodes.x.shape)
        held.x = x if sparse else x.to_dense()
    wide: dict[str, Any] = {}
    if nodes.splits is not None:
        wide = dict(zip(MASKS, nodes.splits.transpose(1, 2, 0), strict=True))
    for field in ("y", *MASKS):
        value = wide.get(field, getattr(nodes, field))
        if value is not None:
            held[field] = torch.from_numpy(value.copy())


def flatten(graph: Graph) -> Graph:
    """Returns the plain graph of all nodes and edges."""
    starts, blocks = offsets(graph), list[Any]()
    for nodes in graph.nodes.values():
        table: Any = scipy.sparse.csr_array((nodes.num_nodes, 0), dtype=np.float32)
        if nodes.x is not None:
            sparse = scipy.sparse.issparse(nodes.x)
            table = nodes.x if sparse else scipy.sparse.csr_array(np.asarray(nodes.x, np.float32))
        blocks.append(table)
    x = scipy.sparse.csr_array(scipy.sparse.block_diag(blocks, format="csr"))
    if not x.shape[1]:
        x = scipy.sparse.csr_array((graph.num_nodes, 1), dtype=np.float32)
    edges = [
        relation.edge_index() + np.array([[starts[relation.source]], [starts[relation.target]]])
        for relation in graph.relations.values()
    ]
    dense = not any(
        nodes.x is None or scipy.sparse.issparse(nodes.x) for nodes in graph.nodes.values()
    )
    return Graph.from_edge_index(
        np.concatenate(edges, axis=1) if edges else np.zeros((2, 0), np.int64),
        x.toarray() if dense else x,
        node_ids=_flat_ids(graph),
        name=f"{graph.name} (flattened)",
        **_flat_labels(graph, starts),
    )


def offsets(graph: Graph) -> dict[str, int]:
    """Returns the number of each type's first node where all types stand one after the other."""
    sizes = [nodes.num_nodes for nodes in graph.nodes.values()]
    return dict(zip(graph.nodes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))


def _flat_ids(graph: Graph) -> list[str]:
    """Returns ids that say of which type a node is: ``author/7``."""
    return [
        f"{name}/{one}"
        for name, nodes in graph.nodes.items()
        for one in (
            range(nodes.num_nodes) if nodes.node_ids is None else nodes.node_ids[:].tolist()
        )
    ]


def _flat_labels(graph: Graph, starts: Mapping[str, int]) -> dict[str, Any]:
    """Returns labels and masks of the one type that has labels, for all nodes."""
    name = graph.labelled_type
    if not name:
        return {}
    nodes = graph.nodes[name]
    assert nodes.y is not None
    rows = slice(starts[name], starts[name] + nodes.num_nodes)
    none = np.nan if nodes.has_number else -1
    y = np.full((graph.num_nodes, *nodes.y.shape[1:]), none, nodes.y.dtype)
    y[rows] = nodes.y
    found: dict[str, Any] = {"y": y, "class_names": nodes.class_names}
    for place, field in enumerate(MASKS):
        mask = getattr(nodes, field) if nodes.splits is None else nodes.splits[:, place].T
        if mask is not None:
            whole = np.zeros((graph.num_nodes, *mask.shape[1:]), np.bool_)
            whole[rows] = mask
            found[field] = whole
    return found


def without_reverses(graph: Graph) -> tuple[Graph, list[str]]:
    """Leaves out relations that are an earlier one read backwards; returns lines that say so.

    Such a relation says nothing new, and would show in one direction the edges that a view or a
    held-out set leaves out in the other.
    """
    kept: dict[Key, Relation] = {}
    said = []
    for key, one in graph.relations.items():
        other, same = find_reverse(one, kept.values())
        if other is not None:
            said.append(describe_reverse(one, other, same=same))
        if not same:
            kept[key] = one
    if len(kept) < len(graph.relations):
        graph = replace(graph, relations=kept)
    return graph, said


def find_reverse(one: Relation, earlier: Iterable[Relation]) -> tuple[Relation | None, bool]:
    """Returns the relation that has the same pairs of nodes, backwards; and if `one` is needless.

    It is if weights and features of the edges are the same, too. Two undirected relations within
    one type are not each other's reverse: they may have the same edges. Memory is bounded.
    """
    found = None
    for other in earlier:
        ends = (other.target, other.source) == (one.source, one.target)
        if not ends or len(other.indices) != len(one.indices) or not len(one.indices):
            continue
        backwards = _fingerprint(one, backwards=True)
        if _fingerprint(other) != backwards:
            continue
        if one.source == one.target and _fingerprint(one) == backwards:
            continue
        if _fingerprint(other, values=True) == _fingerprint(one, backwards=True, values=True):
            return other, True
        found = found or other
    return found, False


def describe_reverse(one: Relation, other: Relation, *, same: bool) -> str:
    """Returns a line on two relations that are each other's reverse."""
    if same:
        return f"edges {one.name}: they are those of {other.name}, backwards: kept once"
    return (
        f"edges {one.name}: they join the same nodes as those of {other.name}, backwards, with "
        "other weights or features: both are kept, and dropped or held out apart"
    )


def _fingerprint(relation: Relation, *, backwards: bool = False, values: bool = False) -> int:
    """Returns 64 bits of a relation's edges that do not depend on their order.

    `values` takes weights and features in. The sum of a hash of each edge is the same for the same
    edges, and needs no sorting; a block at a time, as the arrays may be on disk.
    """
    total = 0
    for start in range(0, len(relation.indices), _BLOCK):
        part = slice(start, start + _BLOCK)
        sources = np.asarray(relation.indices[part]).astype(np.uint64)
        places = np.arange(start, start + len(sources))
        targets = (np.searchsorted(relation.indptr, places, side="right") - 1).astype(np.uint64)
        columns = [targets, sources] if backwards else [sources, targets]
        if values and relation.edge_weight is not None:
            columns.append(_bits(relation.edge_weight[part]))
        if values and relation.edge_features is not None:
            columns += [_bits(column) for column in np.asarray(relation.edge_features[part]).T]
        hashed = np.full(len(sources), 1 + len(columns), np.uint64)
        for column in columns:
            hashed = _mixed(hashed ^ column)
        total += int(hashed.sum(dtype=np.uint64))
    return total % 2**64


def _bits(values: Any) -> Any:
    return np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)


def _mixed(numbers: Any) -> Any:
    """Returns the numbers as SplitMix64 mixes them."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
