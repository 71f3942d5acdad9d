"""Checks the edges of a graph, and sorts them by their targets."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, check_keys, check_known
from graphcl.graphs import interchange

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
_FLOAT32 = np.finfo(np.float32)
_ADVICE = "divide all weights by a constant (only their ratios matter)"
_KEYS = ("edge_index", "edge_weight", "edge_features", "undirected", "preparation")


class Edges(NamedTuple):
    """The fields of a `Relation` that describe its edges."""

    indptr: IntArray
    indices: IntArray
    edge_weight: FloatArray | None
    edge_features: FloatArray | None
    undirected: bool
    edge_ids: IntArray | None
    self_loops_removed: int


def structure(edge_index: Any, num_nodes: int) -> tuple[IntArray, IntArray, int]:
    """Returns sorted, symmetric CSR pointers and indices, and the number of self-loops removed."""
    sources, targets = _ends(edge_index, ("", num_nodes), ("", num_nodes))
    loops = sources == targets
    sources, targets = sources[~loops], targets[~loops]
    both = (np.concatenate([sources, targets]), np.concatenate([targets, sources]))
    ones = np.ones(len(both[0]), dtype=np.bool_)
    csr = scipy.sparse.coo_array((ones, both), shape=(num_nodes, num_nodes)).tocsr()
    csr.sum_duplicates()  # merges duplicates and sorts each row
    return csr.indptr.astype(np.int64), csr.indices.astype(np.int64), int(loops.sum())


def checked_weight(weight: Any, edge_index: Any, num_nodes: int) -> FloatArray:
    """Returns a weight per CSR entry, equal in both directions; `structure` has checked the edges.

    Weights of columns that name the same edge are added. If every edge is listed in both directions
    with equal weights, each edge counts once.
    """
    edges = interchange.to_numpy(edge_index, "edge_index").reshape(2, -1).astype(np.int64)
    values = _weights(weight, edges.shape[1])
    apart = edges[0] != edges[1]
    listed = (values[apart], (edges[0][apart], edges[1][apart]))
    one_way = scipy.sparse.coo_array(listed, shape=(num_nodes, num_nodes)).tocsr()
    one_way.sum_duplicates()
    other = one_way.T.tocsr()
    both = (one_way + other).tocsr()
    both.sort_indices()
    equal = np.array_equal(one_way.indices, other.indices) and np.array_equal(
        one_way.indptr, other.indptr
    )
    if equal and np.allclose(one_way.data, other.data, rtol=1e-9, atol=0):
        both.data *= 0.5  # exact; a symmetric list contains each edge twice
    _check_sums(both)
    result: FloatArray = both.data.astype(np.float32)
    return result


def checked_relation(key: Any, given: Any, sizes: Mapping[str, int]) -> tuple[Any, ...]:
    """Returns the fields of a `Relation`, in order, from what `Graph.from_edges` takes.

    `sizes` has the number of nodes of each type.
    """
    if not (isinstance(key, tuple) and len(key) == 3):
        raise GraphError(f"relation {key!r}: expected (source type, name, target type)")
    source, name, target = map(str, key)
    where = f"relation {source}:{name}:{target}"
    for end in (source, target):
        what = f"{where}: no type"
        check_known(end, sizes, what=what, listed="the types:", error=GraphError)
    about: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"edge_index": given}
    check_keys(about, _KEYS, where=where, error=GraphError)
    if about.get("edge_index") is None:
        raise GraphError(f"{where}: edge_index is not given")
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
    if undirected and not same:
        raise GraphError(
            f"undirected: its ends are of two types, {sources[0]} and {targets[0]}; leave it out, "
            "the encoder uses both directions"
        )
    loops = ends[0] == ends[1] if same else np.zeros(ends.shape[1], np.bool_)
    if loops.any():
        ends = ends[:, ~loops]
        weight = None if weight is None else weight[~loops]
        features = None if features is None else features[~loops]
    shape = (targets[1], sources[1])
    if weight is not None and (weight > _FLOAT32.max / max(1, 2 * len(weight))).any():
        raise GraphError(f"edge_weight: float32 cannot hold the sum of the weights; {_ADVICE}")
    if features is None:
        ends, weight = _merged(ends, weight, shape)
        if same and undirected is not False and ends.shape[1]:
            mirror = _mirror(ends, shape[0])
            if _is_symmetric(ends, weight, mirror):
                return _both_listed(ends, weight, mirror, shape[0], int(loops.sum()))
    edge_ids = None
    if undirected:
        edge_ids = np.tile(np.arange(ends.shape[1]), 2)
        if features is None:  # the two directions of one edge may both be listed: merge them
            lower = np.sort(ends, axis=0)
            lower, weight = _merged(lower, weight, shape)
            ends, edge_ids = lower, np.tile(np.arange(lower.shape[1]), 2)
        ends = np.concatenate([ends, ends[::-1]], axis=1)
        weight = None if weight is None else np.tile(weight, 2)
        features = None if features is None else np.tile(features, (2, 1))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(ends[1], minlength=shape[0]))])
    order: Any = slice(None)  # merged edges are sorted already
    if features is not None:
        order = np.lexsort((ends[0], ends[1]))
    elif edge_ids is not None:
        order = _mirror(ends[::-1], shape[0])
    return Edges(
        indptr.astype(np.int64),
        ends[0][order],
        None if weight is None else weight[order].astype(np.float32),
        None if features is None else features[order],
        bool(undirected),
        None if edge_ids is None else edge_ids[order],
        int(loops.sum()),
    )


def reverse_order(
    indptr: IntArray, indices: IntArray, num_sources: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Returns the same entries as CSR by source: pointers, targets, and the entry of each."""
    order = np.argsort(indices, kind="stable")
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    counts = np.bincount(indices, minlength=num_sources)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), rows[order], order


def _ends(edge_index: Any, sources: tuple[str, int], targets: tuple[str, int]) -> IntArray:
    """Returns the ends of edges, checked; a plain graph's type has no name."""
    edges = interchange.to_numpy(edge_index, "edge_index")
    if edges.size == 0:
        return np.zeros((2, 0), np.int64)
    if edges.ndim != 2 or edges.shape[0] != 2:
        advice = "; pass its transpose" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise GraphError(f"edge_index: expected shape [2, num_edges]; got {edges.shape}{advice}")
    if edges.dtype.kind not in "iu":
        raise GraphError(f"edge_index: node numbers must be integers; got dtype {edges.dtype}")
    for row, end, (kind, count) in ((0, "source", sources), (1, "target", targets)):
        wrong = np.flatnonzero((edges[row] < 0) | (edges[row] >= count))
        if len(wrong):
            place, node = int(wrong[0]), edges[row, wrong[0]]
            raise GraphError(
                f"edge_index: the {end} of edge {place} is {kind} {node}, but the nodes of type "
                f"{kind!r} are 0 to {count - 1}"
                if kind
                else f"edge_index: edge {place} names node {node}, but the nodes are 0 to "
                f"{count - 1} (x has {count} rows)"
            )
    return edges.astype(np.int64)


def _weights(weight: Any, count: int) -> Floats:
    """Returns the weights of edges, checked."""
    given = interchange.to_numpy(weight, "edge_weight")
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.shape != (count,):
        raise GraphError(f"edge_weight: expected one per edge, {count}; got shape {given.shape}")
    if given.dtype.kind not in "biuf":
        raise GraphError(f"edge_weight: weights must be numbers; got dtype {given.dtype}")
    values = given.astype(np.float64)
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        raise GraphError(
            f"edge_weight: {given[place]} at edge {place}; weights are positive and finite"
        )
    wrong = ~_in_range(values)
    if wrong.any():
        place = int(np.flatnonzero(wrong)[0])
        where = f"{given[place]} at edge {place}"
        raise GraphError(f"edge_weight: {where} is outside the range of float32; {_ADVICE}")
    return values


def _in_range(values: npt.NDArray[np.float64]) -> BoolArray:
    """Returns which weights, and their inverses, a float32 can represent."""
    # Below `tiny`, digits are lost and 1 / weight becomes infinite.
    inside: BoolArray = (values >= _FLOAT32.tiny) & (values <= _FLOAT32.max)
    return inside


def _check_sums(weights: scipy.sparse.csr_array) -> None:
    if not _in_range(weights.data).all():
        raise GraphError(
            "edge_weight: the weights of an edge add up to a number outside the range of float32; "
            f"{_ADVICE}"
        )
    degree = np.diff(weights.indptr)
    # A node also has a self-loop with the mean weight of its edges: see `kernels.adjacency`.
    sums = weights.sum(axis=1) * (1 + 1 / np.maximum(degree, 1))
    wrong = np.flatnonzero(sums > _FLOAT32.max)
    if len(wrong):
        raise GraphError(
            f"edge_weight: the weights of node {wrong[0]}'s edges add up to more than a float32 "
            f"can represent; {_ADVICE}"
        )


def _features(features: Any, count: int) -> FloatArray:
    given = interchange.to_numpy(features, "edge_features")
    if given.ndim == 1:
        given = given[:, None]
    if given.ndim != 2 or len(given) != count or given.shape[1] == 0:
        raise GraphError(f"edge_features: expected [{count}, features]; got shape {given.shape}")
    if given.dtype.kind not in "biuf":
        raise GraphError(f"edge_features: must be numbers; got dtype {given.dtype}")
    with np.errstate(over="ignore"):
        values = given.astype(np.float32)
    if not np.isfinite(values).all():
        place, column = (int(i) for i in np.argwhere(~np.isfinite(values))[0])
        raise GraphError(f"edge_features: {given[place, column]} at edge {place}, feature {column}")
    return values


def _merged(
    ends: IntArray, weight: Floats | None, shape: tuple[int, int]
) -> tuple[IntArray, Floats | None]:
    """Returns distinct edges in the order of targets, then sources, and their summed weights."""
    values = np.ones(ends.shape[1], np.bool_) if weight is None else weight
    csr = scipy.sparse.coo_array((values, (ends[1], ends[0])), shape=shape).tocsr()
    csr.sum_duplicates()
    rows = np.repeat(np.arange(shape[0]), np.diff(csr.indptr))
    distinct = np.stack([csr.indices.astype(np.int64), rows])
    return distinct, None if weight is None else csr.data


def _is_symmetric(ends: IntArray, weight: Floats | None, mirror: IntArray) -> bool:
    """Returns whether merged edges within one type are listed in both directions."""
    if not np.array_equal(ends[::-1][:, mirror], ends):
        return False
    return weight is None or bool(np.allclose(weight[mirror], weight, rtol=1e-9, atol=0))


def _mirror(ends: IntArray, num_nodes: int) -> IntArray:
    """Returns the entries in the order of sources, then targets.

    If the edges are symmetric, entry k of it is entry k in the other direction.
    """
    numbers = np.arange(ends.shape[1])
    pattern = scipy.sparse.coo_array((numbers, (ends[0], ends[1])), shape=(num_nodes, num_nodes))
    csr = pattern.tocsr()
    csr.sort_indices()
    order: IntArray = csr.data.astype(np.int64)
    return order


def _both_listed(
    ends: IntArray, weight: Floats | None, mirror: IntArray, num_nodes: int, loops: int
) -> Edges:
    """Returns an undirected relation whose edges are listed in both directions, sorted."""
    entries = np.arange(ends.shape[1])
    edge_ids = (np.cumsum(entries <= mirror) - 1)[np.minimum(entries, mirror)]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(ends[1], minlength=num_nodes))])
    narrow = None if weight is None else weight.astype(np.float32)
    return Edges(indptr.astype(np.int64), ends[0], narrow, None, True, edge_ids, loops)
