"""Converts typed graphs from and to PyTorch Geometric, NetworkX and plain graphs.

What is returned for `TypedGraph.from_edges` are plain arrays; it validates them.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.graphs import interchange
from graphcl.graphs.graph import Graph
from graphcl.store.columns import ScaledFeatures
from graphcl.store.reader import MASKS

if TYPE_CHECKING:
    from graphcl.graphs.typed import Key, NodeType, Relation, TypedGraph

Nodes = dict[str, dict[str, Any]]
Relations = dict["Key", dict[str, Any]]
_OF_NODES = {"x", "y", *MASKS, "num_nodes", "node_ids"}
_BLOCK = 1 << 20  # edges
_OF_EDGES = {"edge_index", "edge_weight", "edge_attr"}


def from_plain(
    graph: Graph, node_type: str, relation: str
) -> tuple[dict[str, "NodeType"], dict["Key", "Relation"]]:
    """Returns the one type and the one relation of a plain graph; arrays are shared."""
    from graphcl.graphs.typed import NodeType, Relation

    graph.check()
    x = graph.x
    if isinstance(x, ScaledFeatures):
        x = np.asarray(x, dtype=np.float32)
    indices = np.asarray(graph.indices, dtype=np.int64)
    entries = np.arange(len(indices))
    shape = (graph.num_nodes, graph.num_nodes)
    mirror = scipy.sparse.csr_array((entries, indices, graph.indptr), shape=shape).tocsc().data
    edge_ids = (np.cumsum(entries <= mirror) - 1)[np.minimum(entries, mirror)]
    ids: Any = graph.node_ids
    nodes = NodeType(
        node_type,
        graph.num_nodes,
        x.astype(np.float32) if x.dtype != np.float32 else x,
        graph.y,
        graph.train_mask,
        graph.val_mask,
        graph.test_mask,
        graph.splits,
        None if ids is None else np.asarray(ids[:]),
        graph.class_names,
        graph.preparation,
    )
    edges = Relation(
        node_type,
        relation,
        node_type,
        np.asarray(graph.indptr),
        indices,
        graph.edge_weight,
        edge_ids=edge_ids,
        self_loops_removed=graph.self_loops_removed,
    )
    return {node_type: nodes}, {edges.key: edges}


def arrays_from_hetero(data: Any) -> tuple[Nodes, Relations]:
    """Returns the arguments of `TypedGraph.from_edges` from a PyG `HeteroData`."""
    if not hasattr(data, "node_types") or not hasattr(data, "edge_types"):
        kind = f"{type(data).__module__}.{type(data).__qualname__}"
        raise GraphError(f"from_pyg: expected a torch_geometric.data.HeteroData; got {kind}")
    nodes: Nodes = {}
    dropped: set[str] = set()
    for name in data.node_types:
        held = data[name]
        nodes[name] = {key: held[key] for key in _OF_NODES if key in held}
        if "x" not in held:
            nodes[name]["num_nodes"] = held.num_nodes
            if held.num_nodes is None:
                raise GraphError(f"from_pyg: type {name!r} has neither x nor num_nodes")
        dropped |= {f"{name}.{key}" for key in held.keys() if key not in _OF_NODES}  # noqa: SIM118
    relations: Relations = {}
    for key in data.edge_types:
        held = data[key]
        if "edge_index" not in held:
            raise GraphError(f"from_pyg: relation {':'.join(key)} has no edge_index")
        edges = {"edge_index": held["edge_index"]}
        if "edge_weight" in held:
            edges["edge_weight"] = held["edge_weight"]
        if "edge_attr" in held:
            edges["edge_features"] = held["edge_attr"]
        relations[key] = edges
        name = ":".join(key)
        dropped |= {f"{name}.{one}" for one in held.keys() if one not in _OF_EDGES}  # noqa: SIM118
    if dropped:
        warnings.warn(
            f"from_pyg: left out {', '.join(sorted(dropped))}: a typed graph has no place for it",
            UserWarning,
            stacklevel=3,
        )
    return nodes, relations


def without_reverses(graph: Any) -> tuple[Any, list[str]]:
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
        graph = type(graph)(graph.nodes, kept, graph.name)
    return graph, said


def find_reverse(one: "Relation", earlier: Iterable["Relation"]) -> tuple["Relation | None", bool]:
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


def describe_reverse(one: "Relation", other: "Relation", *, same: bool) -> str:
    """Returns a line on two relations that are each other's reverse."""
    if same:
        return f"edges {one.name}: they are those of {other.name}, backwards: kept once"
    return (
        f"edges {one.name}: they join the same nodes as those of {other.name}, backwards, with "
        "other weights or features: both are kept, and dropped or held out apart"
    )


def _fingerprint(relation: "Relation", *, backwards: bool = False, values: bool = False) -> int:
    """Returns 128 bits of a relation's edges that do not depend on their order.

    `values` takes weights and features in. The sum of a hash of each edge is the same for the same
    edges, and needs no sorting; a block at a time, as the arrays may be on disk.
    """
    totals = [0, 0]
    for start in range(0, len(relation.indices), _BLOCK):
        part = slice(start, start + _BLOCK)
        sources = np.asarray(relation.indices[part]).astype(np.uint64)
        places = np.arange(start, start + len(sources))
        targets = (np.searchsorted(relation.indptr, places, side="right") - 1).astype(np.uint64)
        ends = (targets, sources) if backwards else (sources, targets)
        columns = list(ends)
        if values and relation.edge_weight is not None:
            columns.append(_bits(relation.edge_weight[part]))
        if values and relation.edge_features is not None:
            columns += [_bits(column) for column in np.asarray(relation.edge_features[part]).T]
        for number in range(2):
            hashed = np.full(len(sources), 1 + number + len(columns), np.uint64)
            for column in columns:
                hashed = _mixed(hashed ^ column)
            totals[number] += int(hashed.sum(dtype=np.uint64))
    return (totals[0] % 2**64 << 64) | totals[1] % 2**64


def _bits(values: Any) -> Any:
    return np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)


def _mixed(numbers: Any) -> Any:
    """Returns the numbers as SplitMix64 mixes them."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


def to_hetero(graph: "TypedGraph", *, sparse: bool) -> Any:
    """Returns a `HeteroData` with the arrays of a typed graph."""
    import torch
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for name, nodes in graph.nodes.items():
        held = data[name]
        held.num_nodes = nodes.num_nodes
        if isinstance(nodes.x, np.ndarray):
            held.x = torch.from_numpy(nodes.x.copy())
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
    for key, relation in graph.relations.items():
        data[key].edge_index = torch.from_numpy(relation.edge_index())
        if relation.edge_weight is not None:
            data[key].edge_weight = torch.from_numpy(relation.edge_weight.copy())
        if relation.edge_features is not None:
            data[key].edge_attr = torch.from_numpy(relation.edge_features.copy())
    return data


def flatten(graph: "TypedGraph") -> Graph:
    """Returns the plain graph of all nodes and edges."""
    starts, columns = offsets(graph), 0
    widths = {name: nodes.num_features for name, nodes in graph.nodes.items()}
    total, blocks = max(1, sum(widths.values())), []
    for name, nodes in graph.nodes.items():
        x = scipy.sparse.csr_array((nodes.num_nodes, total), dtype=np.float32)
        if nodes.x is not None:
            coo = scipy.sparse.coo_array(nodes.x)
            rows, own = coo.coords
            x = scipy.sparse.csr_array((coo.data, (rows, own + columns)), shape=x.shape)
        columns += widths[name]
        blocks.append(x)
    edges = [
        relation.edge_index() + np.array([[starts[relation.source]], [starts[relation.target]]])
        for relation in graph.relations.values()
    ]
    dense = all(isinstance(nodes.x, np.ndarray) for nodes in graph.nodes.values())
    x = scipy.sparse.vstack(blocks, format="csr")
    return Graph.from_edge_index(
        np.concatenate(edges, axis=1) if edges else np.zeros((2, 0), np.int64),
        x.toarray() if dense else x,
        name=f"{graph.name} (flattened)",
        **_flat_labels(graph, starts),
    )


def offsets(graph: "TypedGraph") -> dict[str, int]:
    """Returns the number of each type's first node where all types stand one after the other."""
    sizes = [nodes.num_nodes for nodes in graph.nodes.values()]
    return dict(zip(graph.nodes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))


def _flat_labels(graph: "TypedGraph", starts: Mapping[str, int]) -> dict[str, Any]:
    """Returns labels and masks of the one type that has labels, for all nodes."""
    name = graph.labelled_type
    if not name:
        return {}
    nodes = graph.nodes[name]
    assert nodes.y is not None
    rows = slice(starts[name], starts[name] + nodes.num_nodes)
    y = np.full((graph.num_nodes, *nodes.y.shape[1:]), -1, np.int64)
    y[rows] = nodes.y
    found: dict[str, Any] = {"y": y, "class_names": nodes.class_names}
    for place, field in enumerate(MASKS):
        mask = getattr(nodes, field) if nodes.splits is None else nodes.splits[:, place].T
        if mask is not None:
            whole = np.zeros((graph.num_nodes, *mask.shape[1:]), np.bool_)
            whole[rows] = mask
            found[field] = whole
    return found


def arrays_from_networkx(
    graph: Any,
    *,
    node_type: str = "type",
    features: str | Sequence[str] = "x",
    labels: str = "y",
    relation: str = "relation",
    weight: str = "weight",
    edge_features: str = "features",
) -> tuple[Nodes, Relations]:
    """Returns the arguments of `TypedGraph.from_edges` from a NetworkX graph."""
    interchange.check_networkx(graph, "TypedGraph")
    if not isinstance(features, str):
        interchange.check_named(list(graph.nodes(data=True)), features, labels)
    members: dict[str, list[Any]] = {}
    for node, about in graph.nodes(data=True):
        members.setdefault(str(about.get(node_type, "node")), []).append(node)
    where = {node: (kind, row) for kind, own in members.items() for row, node in enumerate(own)}
    nodes: Nodes = {}
    for kind, own in members.items():
        nodes[kind] = {"num_nodes": len(own), "node_ids": own}
        owners = [(f"node {node!r} of type {kind!r}", graph.nodes[node]) for node in own]
        nodes[kind]["x"] = interchange.feature_table(owners, features)
        nodes[kind]["y"] = interchange.attribute_values(owners, labels)
    listed: dict[Any, list[tuple[int, int, Mapping[str, Any]]]] = {}
    keyed = graph.edges(data=True, keys=True) if graph.is_multigraph() else graph.edges(data=True)
    for u, v, *key, about in keyed:
        named = key[0] if key and isinstance(key[0], str) else "edge"
        (source, row), (target, other) = where[u], where[v]
        full = (source, str(about.get(relation, named)), target)
        if not graph.is_directed() and full not in listed and full[::-1] in listed:
            full, row, other = full[::-1], other, row  # one relation, whichever end comes first
        listed.setdefault(full, []).append((row, other, about))
    relations: Relations = {}
    for full, edges in listed.items():
        ends = np.array([edge[:2] for edge in edges], np.int64).T
        relations[full] = {"edge_index": ends}
        if full[0] == full[2]:
            relations[full]["undirected"] = not graph.is_directed()
        for field, name in (("edge_weight", weight), ("edge_features", edge_features)):
            owners = [(f"an edge of relation {full[1]!r}", edge[2]) for edge in edges]
            values = interchange.attribute_values(owners, name)
            if values is not None:
                relations[full][field] = np.array([interchange.to_numpy(v, name) for v in values])
    return nodes, relations
