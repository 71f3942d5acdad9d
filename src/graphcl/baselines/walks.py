"""Random walks: from node to node, each neighbour equally likely.

The draw of a step is a function of its place, so one thread and many agree.
"""

from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt

from graphcl.kernels.counter import draw_word, stream_key
from graphcl.kernels.parallel import parallel

prange = cast("Any", numba.prange)

Nodes = npt.NDArray[np.int64]


def random_walks(indptr: Nodes, indices: Nodes, starts: Nodes, *, length: int, seed: int) -> Nodes:
    """Returns one walk per start, ``[len(starts), length]``, the start first.

    A walk that reaches a node without neighbours, which can only be its start, stays there.

    Args:
        indptr: CSR row pointers of the graph.
        indices: CSR column indices.
        starts: node numbers; any may repeat.
        length: nodes in a walk.
        seed: decides every step.
    """
    walks = np.empty((len(starts), length), dtype=np.int64)
    key = stream_key(seed, "walks")
    _walk(indptr, indices, starts, np.uint32(key[0]), np.uint32(key[1]), walks)
    return walks


def _walk_loop(
    indptr: Any, indices: Any, starts: Any, word_0: Any, word_1: Any, walks: Any
) -> None:
    for row in prange(len(starts)):
        # A key per walk: places beyond 2^32 steps in all would otherwise repeat.
        own_0 = draw_word(np.uint32(row), word_0, word_1)
        own_1 = draw_word(np.uint32(row), word_1, word_0)
        node = starts[row]
        walks[row, 0] = node
        for step in range(1, walks.shape[1]):
            begin = indptr[node]
            degree = indptr[node + 1] - begin
            if degree > 0:
                word = np.uint64(draw_word(np.uint32(step), own_0, own_1))
                node = indices[begin + np.int64((word * np.uint64(degree)) >> np.uint64(32))]
            walks[row, step] = node


_walk = parallel(_walk_loop)
