"""Converts a graph to plain tensors."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from graphcl.errors import ParameterError
from graphcl.graphs.graph import Graph
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.buffers import borrow
from graphcl.kernels.features import Features, SparseFeatures
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.store.columns import ScaledFeatures

FEATURE_SCALINGS = ("none", "row")


def graph_tensors(
    graph: Graph, *, device: torch.device, feature_scaling: str = "none"
) -> tuple[Features, Adjacency]:
    """Returns the features and the adjacency of `graph` on `device`.

    `feature_scaling` is ``none``, or ``row``: each node's features are divided by the sum of their
    absolute values, as is usual for bags of words.
    """
    graph.check()
    indices = np.asarray(graph.indices, dtype=np.int64)  # a store may have int32
    adjacency = Adjacency.from_csr(graph.indptr, indices, graph.edge_weight, device=device)
    return feature_tensor(graph, device=device, feature_scaling=feature_scaling), adjacency


def feature_tensor(
    graph: Graph,
    *,
    device: torch.device,
    feature_scaling: str = "none",
    rows: slice = slice(None),
) -> Features:
    """Returns the features alone, in float32: all of them, or some `rows`.

    Dense, unscaled float32 features on a CPU share the graph's memory; other features are copied.
    """
    graph.check()
    x: Features
    if isinstance(graph.x, ScaledFeatures) or graph.x.dtype == np.float16:
        stored = stored_features(graph)
        divisor = None if stored.row_divisor is None else stored.row_divisor[rows]
        x = replace(stored, values=stored.values[rows], row_divisor=divisor).to_dense(device)
    elif isinstance(graph.x, np.ndarray):
        x = borrow(graph.x)[rows].to(device)
    else:
        whole = rows == slice(None)
        x = SparseFeatures.from_csr(graph.x if whole else graph.x[rows], device=device)
    if feature_scaling == "row":
        x = _scale_rows(x)
    elif feature_scaling != "none":
        known = " or ".join(FEATURE_SCALINGS)
        raise ParameterError(f"feature_scaling must be {known}; got {feature_scaling!r}")
    return x


def stored_features(graph: Graph, *, feature_scaling: str = "none") -> StoredFeatures:
    """Returns dense features as they are in memory or in a store, without a copy.

    Row scaling needs one pass over the table and four bytes per node.
    """
    if isinstance(graph.x, ScaledFeatures):
        rows = graph.x.row_scale
        # A power of two: dividing by its inverse is exact.
        divisor = None if rows is None else 1 / torch.from_numpy(np.array(rows))
        columns = torch.from_numpy(graph.x.scale.copy())
        x = StoredFeatures(borrow(graph.x.values), columns, divisor)
    else:
        x = StoredFeatures(borrow(graph.x))
    return x.with_unit_rows() if feature_scaling == "row" else x


def _scale_rows(x: Features) -> Features:
    if isinstance(x, Tensor):
        sums = x.abs().sum(1, keepdim=True)
        return x / torch.where(sums > 0, sums, 1)
    lengths = x.indptr.diff()
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    sums = x.values.new_zeros(len(lengths)).index_add_(0, rows, x.values.abs())
    return x.with_values(x.values / torch.where(sums > 0, sums, 1)[rows])
