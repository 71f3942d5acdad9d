"""Triangles and core numbers of a graph."""

from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.kernels.parallel import parallel, prange, serial


def triangles(indptr: Any, indices: Any, weight: Any) -> npt.NDArray[np.float64]:
    """Returns for each node the sum of ``weight[v] * weight[w]`` over its triangles (u, v, w).

    If every weight is 1, this is the number of triangles. The sorted rows of two neighbours are
    merged as in merge sort, so the time is the sum of both degrees over all edges.

    Args:
        indptr: CSR row pointers of an undirected graph without self-loops.
        indices: CSR column indices, sorted in each row.
        weight: float64, one per node.
    """
    sums = np.zeros(len(indptr) - 1)
    _triangles(np.asarray(indptr), np.asarray(indices), weight, sums)
    return sums


@parallel
def _triangles(indptr, indices, weight, sums):  # type: ignore[no-untyped-def]
    for node in prange(sums.shape[0]):
        start, stop = indptr[node], indptr[node + 1]
        total = 0.0
        for entry in range(start, stop):
            neighbour = indices[entry]
            here, there = entry + 1, indptr[neighbour]
            end = indptr[neighbour + 1]
            # Common neighbours that come after `neighbour`, so each triangle counts once.
            common = 0.0
            while here < stop and there < end:
                if indices[here] < indices[there]:
                    here += 1
                elif indices[here] > indices[there]:
                    there += 1
                else:
                    common += weight[indices[here]]
                    here += 1
                    there += 1
            total += weight[neighbour] * common
        sums[node] = total


def core_numbers(indptr: Any, indices: Any) -> npt.NDArray[np.int64]:
    """Returns the core number of each node: the largest k whose k-core contains it.

    Batagelj and Zaversnik's algorithm removes nodes in the order of their remaining degree, which
    is kept in buckets. The time is proportional to the number of edges.
    """
    cores: npt.NDArray[np.int64] = np.diff(indptr).astype(np.int64)
    _peel(np.asarray(indptr), np.asarray(indices), cores)
    return cores


@serial
def _peel(indptr, indices, degree):  # type: ignore[no-untyped-def]
    # `order` has the nodes sorted by degree, `place` each node's position there, and `first` the
    # position at which the bucket of each degree begins.
    size = degree.shape[0]
    first = np.zeros(degree.max() + 2, np.int64)
    for node in range(size):
        first[degree[node] + 1] += 1
    for value in range(1, first.shape[0]):
        first[value] += first[value - 1]
    order, place, fill = np.empty(size, np.int64), np.empty(size, np.int64), first.copy()
    for node in range(size):
        place[node] = fill[degree[node]]
        order[place[node]] = node
        fill[degree[node]] += 1
    for step in range(size):
        node = order[step]
        for entry in range(indptr[node], indptr[node + 1]):
            other = indices[entry]
            if degree[other] > degree[node]:
                # Move it to the bucket below: swap it with the first node of its bucket, then let
                # the bucket begin after it.
                swap = first[degree[other]]
                node_there = order[swap]
                order[place[other]], order[swap] = node_there, other
                place[node_there], place[other] = place[other], swap
                first[degree[other]] += 1
                degree[other] -= 1
