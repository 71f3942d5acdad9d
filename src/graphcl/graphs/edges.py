"""Checks the edges of a graph, and sorts them by their targets."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from graphcl.arrays import Booleans, Doubles, Floats, Integers
from graphcl.errors import GraphError, check_keys, check_known, demand
from graphcl.graphs import interchange, validation

_FLOAT32 = np.finfo(np.float32)
_ADVICE = "divide all weights by a constant (only their ratios matter)"
_KEYS = ("edge_index", "edge_weight", "edge_features", "undirected", "preparation")


class Edges(NamedTuple):
    """The fields of a `Relation` that describe its edges."""

    indptr: Integers
    indices: Integers
    edge_weight: Floats | None
    edge_features: Floats | None
    undirected: bool
    edge_ids: Integers | None
    self_loops_removed: int


def checked_relation(key: Any, given: Any, sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """Returns the fields of a `Relation`, in order, from what `Graph.from_edges` takes.

    `sizes` has the number of nodes of each type.
    """
    demand(
        isinstance(key, tuple) and len(key) == 3,
        f"relation {key!r}: expected (source type, name, target type)",
    )
    source, name, target = map(str, key)
    where = f"relation {source}:{name}:{target}"
    for end in (source, target):
        what = f"{where}: no type"
        check_known(end, sizes, what=what, listed="the types:", error=GraphError)
    about: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"edge_index": given}
    check_keys(about, _KEYS, where=where, error=GraphError)
    demand(about.get("edge_index") is not None, f"{where}: edge_index is not given")
    ends = (source, sizes[source]), (target, sizes[target])
    preparation = about.pop("preparation", None)
    try:
        edges = checked_edges(about.pop("edge_index"), *ends, **about)
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None
    return source, name, target, *edges, preparation


def checked_edges(
    edge_index: Any,
    sources: tuple[str, int],
    targets: tuple[str, int],
    *,
    edge_weight: Any = None,
    edge_features: Any = None,
    undirected: bool | None = None,
) -> Edges:
    """Returns the edges as CSR by target.

    Args:
        edge_index: ``[2, num_edges]``, sources above targets.
        sources: the name of their type, and how many nodes it has.
        targets: likewise.
        edge_weight: a positive number per edge, or None.
        edge_features: a vector per edge, or None.
        undirected: whether both directions are one; None looks whether each edge is listed in both.

    Raises:
        GraphError: an end is not a node, or an array does not fit; the message says where.
    """
    ends = _ends(edge_index, sources, targets)
    weight = None if edge_weight is None else _weights(edge_weight, ends.shape[1])
    features = None if edge_features is None else _features(edge_features, ends.shape[1])
    same = sources[0] == targets[0]
    demand(
        not undirected or same,
        f"undirected: its ends are of two types, {sources[0]} and {targets[0]}; leave it out, "
        "the encoder uses both directions",
    )
    loops = ends[0] == ends[1] if same else np.zeros(ends.shape[1], np.bool_)
    if loops.any():
        ends = ends[:, ~loops]
        weight = None if weight is None else weight[~loops]
        features = None if features is None else features[~loops]
    if features is None:
        shape = (targets[1], sources[1])
        merged, undirected = _merged(ends, weight, shape, undirected if same else False)
        indptr, indices, edge_ids = merged.indptr, merged.indices.astype(np.int64), None
        weight = None if weight is None else merged.data
    else:
        edge_ids = None
        if undirected:
            edge_ids = np.tile(np.arange(ends.shape[1]), 2)
            ends = np.concatenate([ends, ends[::-1]], axis=1)
            weight = None if weight is None else np.tile(weight, 2)
            features = np.tile(features, (2, 1))
        order = np.lexsort((ends[0], ends[1]))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(ends[1], minlength=targets[1]))])
        indices, features = ends[0][order], features[order]
        weight = None if weight is None else weight[order]
        edge_ids = None if edge_ids is None else edge_ids[order]
    if weight is not None:
        _check_sums(indptr, indices, weight)
    return Edges(
        indptr.astype(np.int64),
        indices,
        None if weight is None else weight.astype(np.float32),
        features,
        bool(undirected),
        edge_ids,
        int(loops.sum()),
    )


def reverse_order(
    indptr: Integers, indices: Integers, num_sources: int
) -> tuple[Integers, Integers, Integers]:
    """Returns the same entries as CSR by source: pointers, targets, and the entry of each."""
    order = np.argsort(indices, kind="stable")
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    counts = np.bincount(indices, minlength=num_sources)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), rows[order], order


def _ends(edge_index: Any, sources: tuple[str, int], targets: tuple[str, int]) -> Integers:
    """Returns the ends of edges, checked; a plain graph's type has no name."""
    edges = interchange.to_numpy(edge_index, "edge_index")
    if edges.size == 0:
        return np.zeros((2, 0), np.int64)
    if edges.ndim != 2 or edges.shape[0] != 2:
        advice = "; pass its transpose" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise GraphError(f"edge_index: expected shape [2, num_edges]; got {edges.shape}{advice}")
    demand(
        edges.dtype.kind in "iu",
        f"edge_index: node numbers must be integers; got dtype {edges.dtype}",
    )
    for row, end, (kind, count) in ((0, "source", sources), (1, "target", targets)):
        for place in np.flatnonzero((edges[row] < 0) | (edges[row] >= count))[:1]:
            node = edges[row, place]
            raise GraphError(
                f"edge_index: the {end} of edge {place} is {kind} {node}, but the nodes of type "
                f"{kind!r} are 0 to {count - 1}"
                if kind
                else f"edge_index: edge {place} names node {node}, but the nodes are 0 to "
                f"{count - 1} (x has {count} rows)"
            )
    return edges.astype(np.int64, copy=False)


def _weights(weight: Any, count: int) -> Doubles:
    """Returns the weights of edges, checked."""
    given = interchange.to_numpy(weight, "edge_weight")
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    demand(
        given.shape == (count,),
        f"edge_weight: expected one per edge, {count}; got shape {given.shape}",
    )
    demand(
        given.dtype.kind in "biuf", f"edge_weight: weights must be numbers; got dtype {given.dtype}"
    )
    values = given.astype(np.float64)
    for place in np.flatnonzero(~(np.isfinite(values) & (values > 0)))[:1]:
        raise GraphError(
            f"edge_weight: {given[place]} at edge {place}; weights are positive and finite"
        )
    for place in np.flatnonzero(~_in_range(values))[:1]:
        where = f"{given[place]} at edge {place}"
        raise GraphError(f"edge_weight: {where} is outside the range of float32; {_ADVICE}")
    return values


def _in_range(values: Doubles) -> Booleans:
    """Returns which weights, and their inverses, a float32 can represent."""
    # Below `tiny`, digits are lost and 1 / weight becomes infinite.
    return np.asarray((values >= _FLOAT32.tiny) & (values <= _FLOAT32.max))


def _check_sums(indptr: Integers, indices: Integers, weight: Doubles) -> None:
    """Refuses weights whose sums a float32 cannot hold: of an edge, or of a node's edges."""
    demand(
        _in_range(weight).all(),
        "edge_weight: the weights of an edge add up to a number outside the range of float32; "
        f"{_ADVICE}",
    )
    for ends in (np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), indices):
        # A node also has a self-loop with the mean weight of its edges: see `kernels.adjacency`.
        sums = np.bincount(ends, weight) * (1 + 1 / np.maximum(np.bincount(ends), 1))
        for node in np.flatnonzero(sums > _FLOAT32.max)[:1]:
            raise GraphError(
                f"edge_weight: the weights of node {node}'s edges add up to more than a "
                f"float32 can represent; {_ADVICE}"
            )


def _features(features: Any, count: int) -> Floats:
    given = interchange.to_numpy(features, "edge_features")
    given = given[:, None] if given.ndim == 1 else given
    demand(
        given.shape[:1] == (count,),
        f"edge_features: expected [{count}, features]; got shape {given.shape}",
    )
    return validation.features(given, "edge_features", "edge")


def _merged(
    ends: Integers, weight: Doubles | None, shape: tuple[int, int], undirected: bool | None
) -> tuple[scipy.sparse.csr_array, bool]:
    """Returns distinct edges by target with their summed weights, and whether they are undirected.

    They are if `undirected` is true, or if it is None and each edge is listed in both directions
    with equal weights; such a list has each edge twice, and its weights are not added.
    """
    values = np.ones(ends.shape[1], np.bool_) if weight is None else weight
    there = scipy.sparse.coo_array((values, (ends[1], ends[0])), shape=shape).tocsr()
    there.sum_duplicates()  # merges duplicates and sorts each row
    if undirected is False or not (undirected or there.nnz):
        return there, False
    back = there.T.tocsr()
    symmetric = np.array_equal(there.indptr, back.indptr)
    symmetric = symmetric and np.array_equal(there.indices, back.indices)
    if symmetric and np.allclose(there.data, back.data, rtol=1e-9, atol=0):
        if weight is not None:
            there.data = (there.data + back.data) * 0.5  # the same in both directions
        return there, True
    return (scipy.sparse.csr_array(there + back), True) if undirected else (there, False)
