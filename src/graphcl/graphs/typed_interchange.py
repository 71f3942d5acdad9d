"""Converts typed graphs from and to PyTorch Geometric, NetworkX and plain graphs.

What is returned for `TypedGraph.from_edges` are plain arrays; it validates them.
"""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from graphcl.errors import GraphError, MissingExtraError
from graphcl.graphs import interchange
from graphcl.graphs.graph import Graph
from graphcl.store.columns import ScaledFeatures
from graphcl.store.reader import MASKS

if TYPE_CHECKING:
    from graphcl.graphs.typed import Key, NodeType, Relation, TypedGraph

Nodes = dict[str, dict[str, Any]]
Relations = dict["Key", dict[str, Any]]
_OF_NODES = {"x", "y", *MASKS, "num_nodes", "node_ids"}
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
    return nodes, without_reverses(relations)


def without_reverses(relations: Relations) -> Relations:
    """Leaves out a relation that is an earlier one read backwards, with the same weights."""
    kept: Relations = {}
    for key, edges in relations.items():
        source, _, target = key
        backwards = (
            other
            for (first, _, second), other in kept.items()
            if (first, second) == (target, source)
            and _is_reverse(other, edges, within=source == target)
        )
        if next(backwards, None) is None:
            kept[key] = edges
    return kept


def _is_reverse(one: Mapping[str, Any], other: Mapping[str, Any], *, within: bool) -> bool:
    first = interchange.to_numpy(one["edge_index"], "edge_index")
    second = interchange.to_numpy(other["edge_index"], "edge_index")
    if first.ndim != 2 or len(first) != 2 or first.shape != second.shape or not first.size:
        return False
    orders = np.lexsort((first[1], first[0])), np.lexsort((second[0], second[1]))
    if not np.array_equal(first[:, orders[0]], second[::-1][:, orders[1]]):
        return False
    backwards = first[::-1][:, np.lexsort((first[0], first[1]))]
    if within and np.array_equal(first[:, orders[0]], backwards):
        return False  # two undirected relations with the same edges
    for field in ("edge_weight", "edge_features"):
        values = one.get(field), other.get(field)
        if (values[0] is None) != (values[1] is None):
            return False
        if values[0] is not None:
            left, right = (interchange.to_numpy(value, field) for value in values)
            if not np.array_equal(left[orders[0]], right[orders[1]]):
                return False
    return True


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
    if nodes.y.ndim == 2:
        return {}  # an unlabelled node is not the same as one without any of several labels
    y = np.full(graph.num_nodes, -1, np.int64)
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
    features: str = "x",
    labels: str = "y",
    relation: str = "relation",
    weight: str = "weight",
    edge_features: str = "features",
) -> tuple[Nodes, Relations]:
    """Returns the arguments of `TypedGraph.from_edges` from a NetworkX graph."""
    try:
        import networkx
    except ImportError as error:
        raise MissingExtraError("TypedGraph.from_networkx", "networkx") from error
    if not isinstance(graph, networkx.Graph):
        kind = f"{type(graph).__module__}.{type(graph).__qualname__}"
        raise GraphError(f"from_networkx: expected a networkx graph; got {kind}")
    members: dict[str, list[Any]] = {}
    for node, about in graph.nodes(data=True):
        members.setdefault(str(about.get(node_type, "node")), []).append(node)
    where = {node: (kind, row) for kind, own in members.items() for row, node in enumerate(own)}
    nodes: Nodes = {}
    for kind, own in members.items():
        nodes[kind] = {"num_nodes": len(own), "node_ids": own}
        for field, name in (("x", features), ("y", labels)):
            values = _attribute(
                [graph.nodes[node] for node in own], name, f"a node of type {kind!r}"
            )
            if values is not None:
                table = np.array([np.asarray(interchange.to_numpy(one, name)) for one in values])
                nodes[kind][field] = table[:, None] if field == "x" and table.ndim == 1 else table
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
            said = f"an edge of relation {full[1]!r}"
            values = _attribute([edge[2] for edge in edges], name, said)
            if values is not None:
                relations[full][field] = np.array([interchange.to_numpy(v, name) for v in values])
    return nodes, relations


def _attribute(owners: list[Mapping[str, Any]], name: str, what: str) -> list[Any] | None:
    having = sum(name in one for one in owners)
    if having not in (0, len(owners)):
        raise GraphError(
            f"from_networkx: {len(owners) - having} of {len(owners)}: {what} has no attribute "
            f"{name!r}, and others have"
        )
    return [one[name] for one in owners] if having else None
