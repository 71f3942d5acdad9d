"""Converts graphs of PyTorch Geometric, NetworkX and SciPy to arrays.

This module does not import `graphcl.Graph`, whose constructors validate the arrays.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, demand, import_extra

if TYPE_CHECKING:
    import torch

Arrays = dict[str, Any]
Kinds = dict[Any, Arrays]  # the arrays of each type of nodes, or of each relation
Owners = Sequence[tuple[str, Mapping[str, Any]]]  # nodes or edges, named, with their attributes


def is_tensor(value: Any) -> "TypeGuard[torch.Tensor]":
    """Returns whether `value` is a torch tensor, without importing torch."""
    # A caller that has a tensor has already imported torch.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_numpy(value: Any, what: str) -> npt.NDArray[Any]:
    """Converts `value` (tensor on any device, array, list, data frame) to a NumPy array."""
    if is_tensor(value):
        import torch

        value = value.detach().to("cpu")
        if value.dtype == torch.bfloat16:
            value = value.float()
        if value.layout != torch.strided:
            value = value.to_dense()
        return cast("npt.NDArray[Any]", value.numpy())
    try:
        return np.asarray(value)
    except ValueError as error:
        raise GraphError(f"{what}: not a rectangular array ({error})") from error


def embedding_table(z: Any, owner: str, num_nodes: int | None = None) -> npt.NDArray[Any]:
    """Returns embeddings as one array, from an array, a list of tables or a list of rows.

    Raises:
        GraphError: they are not numbers ``[num_nodes, dim]``, finite or not.
    """
    if isinstance(z, list | tuple):
        parts = [to_numpy(part, f"{owner}: embeddings") for part in z]
        demand(parts, f"{owner}: the list of embeddings is empty")
        first = parts[0].shape
        for place, part in enumerate(parts):
            if part.ndim not in (1, 2) or part.ndim != len(first) or part.shape[-1] != first[-1]:
                raise GraphError(
                    f"{owner}: entry {place} of the list of embeddings has shape {part.shape}, "
                    f"the first {first}; pass tables of one width, or rows"
                )
        z = np.stack(parts) if len(first) == 1 else np.concatenate(parts)
    found = to_numpy(z, f"{owner}: embeddings")
    if found.ndim != 2 or found.shape[1] == 0 or found.dtype.kind not in "biuf":
        what = f"{found.dtype} {found.shape}"
        raise GraphError(f"{owner}: embeddings must be numbers [nodes, dim]; got {what}")
    demand(
        num_nodes is None or num_nodes == len(found),
        f"{owner}: embeddings {found.shape} for a graph of {num_nodes} nodes",
    )
    return found


def is_sparse(value: Any) -> bool:
    """Returns whether `value` is a sparse SciPy matrix or a sparse tensor."""
    if is_tensor(value):
        import torch

        return value.layout != torch.strided
    return bool(scipy.sparse.issparse(value))


def to_csr(value: Any) -> scipy.sparse.csr_array:
    """Converts a sparse SciPy matrix or tensor to a canonical `scipy.sparse.csr_array`."""
    if is_tensor(value):
        import torch

        coo = value.detach().to("cpu").to_sparse(layout=torch.sparse_coo).coalesce()
        rows, columns = coo.indices().numpy()
        value = scipy.sparse.coo_array((coo.values().numpy(), (rows, columns)), shape=coo.shape)
    csr = scipy.sparse.csr_array(value, copy=True)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    return csr


def arrays_from_scipy(adjacency: Any) -> Arrays:
    """Returns the edges of a square sparse matrix: every stored non-zero value is an edge.

    Values are edge weights, unless all are 1.
    """
    demand(
        scipy.sparse.issparse(adjacency),
        f"from_scipy: expected a scipy.sparse matrix; got {_kind(adjacency)}",
    )
    demand(
        adjacency.shape[0] == adjacency.shape[1],
        f"from_scipy: the adjacency must be square; got {adjacency.shape}",
    )
    coo = scipy.sparse.coo_array(adjacency)
    present = coo.data != 0
    values = coo.data[present]
    return {
        "edge_index": np.stack([coo.coords[0][present], coo.coords[1][present]]),
        "edge_weight": None if (values == 1).all() else values,
        "num_nodes": int(adjacency.shape[0]),
    }


def arrays_from_pyg(data: Any, x: Any = None) -> Arrays:
    """Returns the edges, features, labels and masks of a `torch_geometric.data.Data`.

    Raises:
        GraphError: it has no edges, or no features, and `x` does not give them.
    """
    demand(
        hasattr(data, "edge_index") and hasattr(data, "num_nodes"),
        f"from_pyg: expected a torch_geometric Data or HeteroData; got {_kind(data)}",
    )
    demand(
        data.edge_index is not None, "from_pyg: data.edge_index is None; a graph needs an edge list"
    )
    x = getattr(data, "x", None) if x is None else x
    if x is None:
        others = ", ".join(sorted(_taken(data, _OF_GRAPH, "data.")[1]))
        raise GraphError(
            f"from_pyg: the graph has no features: data.x is None{others and f' (it has {others})'}"
            "; set data.x, or compute some from the edges: Graph.from_pyg(data, 'structural')"
        )
    arrays, left_out = _taken(data, _OF_GRAPH)
    if isinstance(x, str):
        arrays["num_nodes"] = data.num_nodes
    _say_left_out(left_out, "; weights of edges are data.edge_weight")
    return {**arrays, "x": x}


def _taken(held: Any, names: Mapping[str, str], owner: str = "") -> tuple[Arrays, list[str]]:
    """Returns what a holder of PyG has, by our names, and what a graph has no place for."""
    found = {ours: getattr(held, theirs, None) for theirs, ours in names.items()}
    others = held.keys() if callable(getattr(held, "keys", None)) else ()
    left_out = [
        f"{owner}{name}"
        for name in others
        if name not in {*names, "num_nodes"} and getattr(held, name, None) is not None
    ]
    return {name: one for name, one in found.items() if one is not None}, left_out


def _say_left_out(names: Sequence[str], advice: str = "") -> None:
    if names:
        warnings.warn(
            f"from_pyg: left out {', '.join(sorted(names))}: a graph has no place for it{advice}",
            UserWarning,
            stacklevel=4,
        )


_OF_NODES = {name: name for name in ("x", "y", "train_mask", "val_mask", "test_mask")}
_OF_GRAPH = {"edge_index": "edge_index", "edge_weight": "edge_weight", **_OF_NODES}
_OF_TYPE = {"node_ids": "node_ids", **_OF_NODES}
_OF_RELATION = {
    "edge_index": "edge_index",
    "edge_weight": "edge_weight",
    "edge_attr": "edge_features",
}


def arrays_from_hetero(data: Any) -> tuple[Kinds, Kinds]:
    """Returns the arguments of `Graph.from_edges` from a PyG `HeteroData`."""
    nodes: Kinds = {}
    relations: Kinds = {}
    left_out: list[str] = []
    for name in data.node_types:
        nodes[name], others = _taken(data[name], _OF_TYPE, f"{name}.")
        left_out += others
        if "x" not in nodes[name]:
            nodes[name]["num_nodes"] = data[name].num_nodes
            demand(
                data[name].num_nodes is not None,
                f"from_pyg: type {name!r} has neither x nor num_nodes",
            )
    for key in data.edge_types:
        relations[key], others = _taken(data[key], _OF_RELATION, f"{':'.join(key)}.")
        left_out += others
        demand(
            "edge_index" in relations[key], f"from_pyg: relation {':'.join(key)} has no edge_index"
        )
    _say_left_out(left_out)
    return nodes, relations


def arrays_from_networkx(
    graph: Any,
    *,
    features: str | Sequence[str],
    labels: str,
    weight: str | None,
    node_type: str | None,
    relation: str | None,
    edge_features: str | None,
) -> tuple[Kinds, Kinds]:
    """Returns the arguments of `Graph.from_edges` from a NetworkX graph.

    Without `node_type`, `relation` and `edge_features` it has one relation, whatever the keys of
    its edges are. Nodes keep their order.
    """
    networkx = import_extra("networkx", feature="Graph.from_networkx", extra="networkx")
    demand(
        isinstance(graph, networkx.Graph),
        f"from_networkx: expected a networkx graph; got {_kind(graph)}",
    )
    demand(len(graph), "from_networkx: zero nodes; a graph needs at least one")
    plain = node_type is None and relation is None and edge_features is None
    if features and (plain or not isinstance(features, str)):
        names = (features,) if isinstance(features, str) else features
        check_named(list(graph.nodes(data=True)), names, labels)
    members: dict[str, list[Any]] = {}
    for node, about in graph.nodes(data=True):
        members.setdefault(str(about.get(node_type, "node")), []).append(node)
    where = {node: (kind, row) for kind, own in members.items() for row, node in enumerate(own)}
    nodes: Kinds = {}
    for kind, own in members.items():
        nodes[kind] = {"num_nodes": len(own), "node_ids": own}
        of_type = "" if plain else f" of type {kind!r}"
        owners = [(f"node {node!r}{of_type}", graph.nodes[node]) for node in own]
        nodes[kind]["x"] = feature_table(owners, features)
        nodes[kind]["y"] = attribute_values(owners, labels)
    listed: dict[Any, list[tuple[int, int, str, Mapping[str, Any]]]] = {}
    keyed = graph.edges(data=True, keys=True) if graph.is_multigraph() else graph.edges(data=True)
    for u, v, *key, about in keyed:
        named = key[0] if key and isinstance(key[0], str) and not plain else "edge"
        (source, row), (target, other) = where[u], where[v]
        full = (source, str(about.get(relation, named)), target)
        if not graph.is_directed() and full not in listed and full[::-1] in listed:
            full, row, other = full[::-1], other, row  # one relation, whichever end comes first
        listed.setdefault(full, []).append((row, other, f"edge {u!r} – {v!r}", about))
    relations: Kinds = {}
    for full, edges in listed.items():
        relations[full] = {"edge_index": np.array([edge[:2] for edge in edges], np.int64).T}
        if full[0] == full[2]:
            relations[full]["undirected"] = not graph.is_directed()
        for field, name in (("edge_weight", weight), ("edge_features", edge_features)):
            owners = [edge[2:] for edge in edges]
            values = None if name is None else attribute_values(owners, name, needed=plain)
            if name is not None and values is not None:
                relations[full][field] = np.array([to_numpy(v, name) for v in values])
    return nodes, relations


def check_named(owners: Owners, names: Sequence[str], labels: str) -> None:
    """Refuses names of features that no node has; the message has those that there are."""
    there = {name: about[name] for _, about in owners for name in about if name != labels}
    for name in names:
        if name not in there:
            numbers = [one for one, value in there.items() if _is_number(value)]
            named = f"name attributes, features={numbers[:8]}, " if numbers else ""
            raise GraphError(
                f"from_networkx: the graph has no features: no node has the attribute {name!r}; "
                f"{named}pass x, or compute some from the edges: "
                "Graph.from_networkx(graph, features='structural')"
            )


def feature_table(owners: Owners, names: str | Sequence[str]) -> npt.NDArray[Any] | None:
    """Returns attributes of nodes side by side, each a number or a vector; None if there are none.

    Args:
        owners: what a node is called in messages, and its attributes.
        names: those that are taken. One that none of these nodes has is left out.

    Raises:
        GraphError: some have an attribute and others have not, or a value is no number.
    """
    tables = []
    for name in (names,) if isinstance(names, str) else names:
        values = attribute_values(owners, name)
        if values is None:
            continue
        for (who, _), value in zip(owners, values, strict=True):
            if not _is_number(value):
                raise GraphError(f"from_networkx: {who}: {name!r} is {value!r}, not a number")
        table = to_numpy([to_numpy(one, name) for one in values], name)
        tables.append(table[:, None] if table.ndim == 1 else table)
    return np.concatenate(tables, axis=1) if tables else None


def attribute_values(owners: Owners, name: str, *, needed: bool = False) -> list[Any] | None:
    """Returns an attribute of nodes or edges; None if none has it.

    Raises:
        GraphError: some have it and others have not; or none has it, and it is `needed`.
    """
    lacking = [who for who, about in owners if name not in about]
    if lacking and (needed or len(lacking) < len(owners)):
        others = ", and others have" if len(lacking) < len(owners) else ""
        raise GraphError(f"from_networkx: {lacking[0]} has no attribute {name!r}{others}")
    return None if lacking else [about[name] for _, about in owners]


def _is_number(value: Any) -> bool:
    return is_tensor(value) or np.asarray(value).dtype.kind in "biuf"


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
