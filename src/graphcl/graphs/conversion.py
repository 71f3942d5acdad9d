"""Converts graphs to PyTorch Geometric's, and to plain graphs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.store.columns import ScaledFeatures
from graphcl.store.header import MASKS


def to_data(graph: Graph, *, sparse: bool) -> Any:
    """Returns a `Data` with the arrays of a plain graph, both directions of each edge."""
    import torch
    from torch_geometric.data import Data

    data = Data(edge_index=torch.from_numpy(graph.edge_index()), num_nodes=graph.num_nodes)
    _fill(data, graph.nodes[next(iter(graph.nodes))], sparse=sparse)
    if graph.edge_weight is not None:
        data.edge_weight = torch.from_numpy(graph.edge_weight.copy())
    return data


def _fill(held: Any, nodes: Nodes, *, sparse: bool) -> None:
    """Gives a PyG holder of nodes their features, labels and masks."""
    import torch

    if isinstance(nodes.x, np.ndarray | ScaledFeatures):
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


def to_hetero(graph: Graph, *, sparse: bool) -> Any:
    """Returns a `HeteroData` with the arrays of a graph."""
    import torch
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for name, nodes in graph.nodes.items():
        data[name].num_nodes = nodes.num_nodes
        _fill(data[name], nodes, sparse=sparse)
    for key, relation in graph.relations.items():
        data[key].edge_index = torch.from_numpy(relation.edge_index())
        if relation.edge_weight is not None:
            data[key].edge_weight = torch.from_numpy(relation.edge_weight.copy())
        if relation.edge_features is not None:
            data[key].edge_attr = torch.from_numpy(relation.edge_features.copy())
    return data


def flatten(graph: Graph) -> Graph:
    """Returns the plain graph of all nodes and edges."""
    starts, columns = offsets(graph), 0
    widths = {name: nodes.num_features for name, nodes in graph.nodes.items()}
    total, blocks = max(1, sum(widths.values())), []
    for name, nodes in graph.nodes.items():
        x = scipy.sparse.csr_array((nodes.num_nodes, total), dtype=np.float32)
        if nodes.x is not None:
            sparse = scipy.sparse.issparse(nodes.x)
            coo = scipy.sparse.coo_array(nodes.x if sparse else np.asarray(nodes.x, np.float32))
            rows, own = coo.coords
            x = scipy.sparse.csr_array((coo.data, (rows, own + columns)), shape=x.shape)
        columns += widths[name]
        blocks.append(x)
    edges = [
        relation.edge_index() + np.array([[starts[relation.source]], [starts[relation.target]]])
        for relation in graph.relations.values()
    ]
    dense = not any(
        nodes.x is None or scipy.sparse.issparse(nodes.x) for nodes in graph.nodes.values()
    )
    x = scipy.sparse.vstack(blocks, format="csr")
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
