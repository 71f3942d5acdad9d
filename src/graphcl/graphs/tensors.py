"""Converts a graph to plain tensors."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from graphcl.errors import ParameterError
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import ColumnScaling, Scaling
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.buffers import borrow
from graphcl.kernels.columns import ColumnTransform
from graphcl.kernels.features import Features, SparseFeatures
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.store.columns import ScaledFeatures

_BLOCK = 1 << 22  # values that are scaled at a time
FEATURE_SCALINGS = ("none", "row", "auto")


def graph_tensors(
    graph: Graph, *, device: torch.device, feature_scaling: Scaling = "none"
) -> tuple[Features, Adjacency]:
    """Returns the features and the adjacency of `graph` on `device`.

    `feature_scaling` is ``none``, or ``row``: each node's features are divided by the sum of their
    absolute values, as is usual for bags of words. For ``auto`` it is what
    `graphcl.graphs.scaling.fit_scaling` has found in the training rows.
    """
    graph.check()
    indices = np.asarray(graph.indices, dtype=np.int64)  # a store may have int32
    adjacency = Adjacency.from_csr(graph.indptr, indices, graph.edge_weight, device=device)
    return feature_tensor(graph, device=device, feature_scaling=feature_scaling), adjacency


def feature_tensor(
    graph: Graph,
    *,
    device: torch.device,
    feature_scaling: Scaling = "none",
    rows: slice = slice(None),
) -> Features:
    """Returns the features alone, in float32: all of them, or some `rows`.

    Dense, unscaled float32 features on a CPU share the graph's memory; other features are copied.
    """
    graph.check()
    columns, name = _resolved(feature_scaling)
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
    if columns is not None:
        return _scale_columns(x, columns.transform(device))
    return _scale_rows(x) if name == "row" else x


def stored_features(graph: Graph, *, feature_scaling: Scaling = "none") -> StoredFeatures:
    """Returns dense features as they are in memory or in a store, without a copy.

    Scaling rows or words needs one pass over the table and four bytes per node.
    """
    scaled, name = _resolved(feature_scaling)
    if isinstance(graph.x, ScaledFeatures):
        rows = graph.x.row_scale
        # A power of two: dividing by its inverse is exact.
        divisor = None if rows is None else 1 / torch.from_numpy(np.array(rows))
        columns = torch.from_numpy(graph.x.scale.copy())
        x = StoredFeatures(borrow(graph.x.values), columns, divisor)
    else:
        x = StoredFeatures(borrow(graph.x))
    if scaled is not None:
        return x.with_transform(scaled.transform(torch.device("cpu")))
    return x.with_unit_rows() if name == "row" else x


def _resolved(feature_scaling: Scaling) -> tuple[ColumnScaling | None, str]:
    """Returns what is done to columns, or None and the name of what is done to the whole table."""
    if isinstance(feature_scaling, ColumnScaling):
        return (None if feature_scaling.plain else feature_scaling), feature_scaling.plain
    if feature_scaling == "auto":
        raise ParameterError("feature_scaling 'auto' is fitted to training rows first: fit_scaling")
    if feature_scaling not in FEATURE_SCALINGS:
        known = " or ".join(FEATURE_SCALINGS)
        raise ParameterError(f"feature_scaling must be {known}; got {feature_scaling!r}")
    return None, feature_scaling


def _scale_columns(x: Features, transform: ColumnTransform) -> Features:
    """Returns the features transformed; sparse ones stay sparse if zeros stay zeros."""
    if not isinstance(x, Tensor) and not transform.keeps_zeros:
        x = x.to_dense()
    if isinstance(x, Tensor):
        out = torch.empty_like(x)
        height = max(1, _BLOCK // x.shape[1])
        for start in range(0, len(x), height):
            block = x[start : start + height]
            out[start : start + height] = transform(block, transform.divisors(block))
        return out
    rows, sums = _row_sums(x, x.values.abs() * transform.words[x.indices])
    return x.with_values(transform.entries(x.values, x.indices, sums[rows]))


def _scale_rows(x: Features) -> Features:
    if isinstance(x, Tensor):
        sums = x.abs().sum(1, keepdim=True)
        return x / torch.where(sums > 0, sums, 1)
    rows, sums = _row_sums(x, x.values.abs())
    return x.with_values(x.values / sums[rows])


def _row_sums(x: SparseFeatures, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the row of each entry, and the sum of each row's `values`, or 1 where that is 0."""
    lengths = x.indptr.diff()
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    sums = values.new_zeros(len(lengths)).index_add_(0, rows, values)
    return rows, torch.where(sums > 0, sums, 1)
