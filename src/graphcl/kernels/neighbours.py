r"""Neighbours drawn at random, the same number for every node.

With replacement, each slot of a node of degree :math:`d` holds its neighbour number
:math:`\lfloor r d / 2^{32} \rfloor` for a 32-bit draw :math:`r`. Without replacement, the slots
hold every neighbour once if :math:`d \le f`, and otherwise a uniform set of :math:`f` neighbours,
drawn by Floyd's method. An empty slot holds the node itself.

The draw of a slot is a function of its position, so the result does not depend on the device or the
number of threads.
"""

import numpy as np
import torch
from torch import Tensor

from graphcl.kernels.counter import Key, draw, draw_word, positions
from graphcl.kernels.parallel import parallel, prange


def sample_neighbours(
    indptr: Tensor, indices: Tensor, nodes: Tensor, *, fan_out: int, replace: bool, key: Key
) -> Tensor:
    """Returns `fan_out` neighbours of each of `nodes`, ``[len(nodes) · fan_out]``.

    Args:
        indptr: CSR row pointers, int64, on the same device as the other tensors.
        indices: CSR column indices, int64; on a CPU also int32.
        nodes: node numbers, which may repeat.
        fan_out: slots per node.
        replace: whether a neighbour can be drawn twice.
        key: the stream of draws.
    """
    if nodes.device.type != "cpu":
        return sample_neighbours_reference(
            indptr, indices, nodes, fan_out=fan_out, replace=replace, key=key
        )
    children = torch.empty(len(nodes) * fan_out, dtype=torch.int64)
    _sample(
        indptr.numpy(),
        indices.numpy(),
        nodes.numpy(),
        fan_out,
        replace,
        np.uint32(key[0]),
        np.uint32(key[1]),
        children.numpy(),
    )
    return children


def sample_neighbours_reference(
    indptr: Tensor, indices: Tensor, nodes: Tensor, *, fan_out: int, replace: bool, key: Key
) -> Tensor:
    """`sample_neighbours` in plain tensor operations, on any device."""
    start = indptr[nodes][:, None]
    degree = indptr[nodes + 1][:, None] - start
    draws = draw(positions(len(nodes) * fan_out, nodes.device), key).view(-1, fan_out)
    if replace:
        offsets = (draws * degree) >> 32
        filled = (degree > 0).expand(-1, fan_out)
    else:
        offsets = _floyd(draws, degree)
        filled = torch.arange(fan_out, device=nodes.device) < degree
    # An empty slot reads entry 0 of the graph, if there is one, and discards it.
    place = torch.where(filled, start + offsets, 0)
    found = indices[place] if len(indices) else torch.zeros_like(place)
    return torch.where(filled, found, nodes[:, None]).view(-1)


def _floyd(draws: Tensor, degree: Tensor) -> Tensor:
    """Floyd's method: for j = d − f … d − 1, take a random number up to j, or j if it is taken."""
    fan_out = draws.shape[1]
    offsets = torch.arange(fan_out, device=draws.device).repeat(len(draws), 1)
    many = degree[:, 0] > fan_out
    for slot in range(fan_out):
        last = degree[:, 0] - fan_out + slot
        chosen = (draws[:, slot] * (last + 1)) >> 32
        taken = (offsets[:, :slot] == chosen[:, None]).any(1)
        offsets[:, slot] = torch.where(many, torch.where(taken, last, chosen), slot)
    return offsets


@parallel
def _sample(  # type: ignore[no-untyped-def]
    indptr, indices, nodes, fan_out, replace, word_0, word_1, children
):
    for row in prange(nodes.shape[0]):
        node = nodes[row]
        start = indptr[node]
        degree = indptr[node + 1] - start
        slots = children[row * fan_out : (row + 1) * fan_out]
        first = row * fan_out
        for slot in range(fan_out):
            word = np.int64(draw_word(np.uint32(first + slot), word_0, word_1))
            if degree == 0 or (not replace and slot >= degree):
                slots[slot] = node
            elif replace:
                slots[slot] = indices[start + ((word * degree) >> 32)]
            elif degree <= fan_out:
                slots[slot] = indices[start + slot]
            else:
                last = degree - fan_out + slot
                chosen = indices[start + ((word * (last + 1)) >> 32)]
                for before in range(slot):
                    if slots[before] == chosen:
                        chosen = indices[start + last]
                        break
                slots[slot] = chosen
