"""Converts graphs of PyTorch Geometric, NetworkX, SciPy and `.npz` files to plain arrays.

This module does not import `graphcl.Graph`, whose constructors validate the arrays.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, MissingExtraError, suggestion
from graphcl.files.npz import read_npz

if TYPE_CHECKING:
    import torch

Arrays = dict[str, Any]
_OPTIONAL = ("y", "train_mask", "val_mask", "test_mask", "node_ids", "edge_weight")
_SPARSE = ("x_indptr", "x_indices", "x_data", "x_shape")
_KNOWN = {"edge_index", "x", *_SPARSE, *_OPTIONAL}
_TYPES = {"node_type", "edge_type"}


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
    if not scipy.sparse.issparse(adjacency):
        raise GraphError(f"from_scipy: expected a scipy.sparse matrix; got {_kind(adjacency)}")
    if adjacency.shape[0] != adjacency.shape[1]:
        raise GraphError(f"from_scipy: the adjacency must be square; got {adjacency.shape}")
    coo = scipy.sparse.coo_array(adjacency)
    present = coo.data != 0
    values = coo.data[present]
    return {
        "edge_index": np.stack([coo.coords[0][present], coo.coords[1][present]]),
        "edge_weight": None if (values == 1).all() else values,
        "num_nodes": int(adjacency.shape[0]),
    }


def arrays_from_pyg(data: Any) -> Arrays:
    """Returns the edges, features, labels and masks of a `torch_geometric.data.Data`."""
    if not hasattr(data, "edge_index") or not hasattr(data, "num_nodes"):
        raise GraphError(f"from_pyg: expected a torch_geometric.data.Data; got {_kind(data)}")
    if data.edge_index is None:
        raise GraphError("from_pyg: data.edge_index is None; a graph needs an edge list")
    arrays: Arrays = {"edge_index": data.edge_index, "x": data.x, "y": data.y}
    arrays["edge_weight"] = getattr(data, "edge_weight", None)
    for name in ("train_mask", "val_mask", "test_mask"):
        arrays[name] = getattr(data, name, None)
    _say_dropped(data)
    return arrays


_TAKEN = {"edge_index", "x", "y", "edge_weight", "train_mask", "val_mask", "test_mask"}


def _say_dropped(data: Any) -> None:
    """Warns of what a `Data` holds and a graph has no place for, such as features of edges."""
    names = data.keys() if callable(getattr(data, "keys", None)) else ()
    dropped = sorted(
        name
        for name in names
        if name not in _TAKEN | {"num_nodes"} and getattr(data, name, None) is not None
    )
    if dropped:
        listed = ", ".join(dropped)
        warnings.warn(
            f"from_pyg: left out {listed}: a graph has no place for it; weights of edges are "
            "data.edge_weight",
            UserWarning,
            stacklevel=4,
        )


def arrays_from_networkx(
    graph: Any, *, features: str, labels: str, weight: str | None = None
) -> Arrays:
    """Returns edges, node ids and the node attributes named `features` and `labels`.

    If `weight` is given, the edge attribute of that name is returned too. Nodes keep the order of
    ``graph.nodes``.
    """
    try:
        import networkx
    except ImportError as error:
        raise MissingExtraError("Graph.from_networkx", "networkx") from error
    if not isinstance(graph, networkx.Graph):
        raise GraphError(f"from_networkx: expected a networkx graph; got {_kind(graph)}")
    nodes = list(graph.nodes)
    position = {node: index for index, node in enumerate(nodes)}
    edges = [(position[u], position[v]) for u, v in graph.edges()]
    return {
        "edge_index": np.array(edges, dtype=np.int64).reshape(-1, 2).T,
        "node_ids": nodes,
        "x": _node_attribute(graph.nodes, features),
        "y": _node_attribute(graph.nodes, labels),
        "edge_weight": None if weight is None else _edge_attribute(graph, weight),
        "num_nodes": len(nodes),
    }


def unused_arrays(path: Path, unknown: Sequence[str], known: Iterable[str]) -> str:
    """Returns a line about arrays of a file that are not used."""
    listed, near = ", ".join(map(repr, unknown[:8])), suggestion(unknown[0], known)
    return f"{path}: not used: unknown array {listed}{near}; known: {', '.join(sorted(known))}"


def read_arrays(
    path: Path, *, extras: bool = False, on_note: Callable[[str], None] = lambda _: None
) -> Arrays:
    """Reads the arguments of `Graph.from_edge_index` from an `.npz` file that `numpy.savez` wrote.

    The file contains ``edge_index`` [2, edges], and ``x`` [nodes, features] or the sparse features
    ``x_indptr``, ``x_indices``, ``x_data`` and ``x_shape``. It may contain ``y``, ``train_mask``,
    ``val_mask``, ``test_mask``, ``node_ids`` and ``edge_weight`` [edges]. Pickles are never read.
    Other arrays are not used. Without `extras`, `on_note` gets a line about them, since one may be
    misspelt, except for types of nodes and edges and the edges of other relations
    (``edge_index_NAME``).
    """
    arrays: Arrays = read_npz(path, _KNOWN if extras else None, GraphError)
    unknown = sorted(
        name for name in set(arrays) - _KNOWN - _TYPES if not name.startswith("edge_index_")
    )
    if unknown:
        on_note(unused_arrays(path, unknown, _KNOWN))
    if "edge_index" not in arrays:
        raise GraphError(f"{path}: has no array 'edge_index' ([2, edges])")
    given: Arrays = {name: arrays[name] for name in _OPTIONAL if name in arrays}
    if "x" in arrays:
        x: Any = arrays["x"]
    elif all(name in arrays for name in _SPARSE):
        x = _sparse_features(arrays, path)
    else:
        raise GraphError(f"{path}: has no array 'x' ([nodes, features])")
    return {"edge_index": arrays["edge_index"], "x": x, **given}


def _sparse_features(arrays: Arrays, path: Path) -> scipy.sparse.csr_array:
    try:
        parts = (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"])
        x = scipy.sparse.csr_array(parts, shape=tuple(int(n) for n in arrays["x_shape"]))
        x.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise GraphError(f"{path}: x_* is not a CSR matrix ({error})") from None
    return x


def _edge_attribute(graph: Any, name: str) -> list[Any]:
    listed = list(graph.edges(data=name))
    for source, target, value in listed:
        if value is None:
            raise GraphError(
                f"from_networkx: edge {source!r} – {target!r} has no attribute {name!r}"
            )
    return [value for _, _, value in listed]


def _node_attribute(nodes: Mapping[Any, Mapping[str, Any]], name: str) -> list[Any] | None:
    having = [node for node in nodes if name in nodes[node]]
    if not having:
        return None
    if len(having) < len(nodes):
        lacking = next(node for node in nodes if name not in nodes[node])
        raise GraphError(f"from_networkx: node {lacking!r} has no attribute {name!r}")
    return (
        [np.atleast_1d(to_numpy(nodes[node][name], name)) for node in nodes]
        if (np.ndim(nodes[having[0]][name]) > 0)
        else [nodes[node][name] for node in nodes]
    )


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
