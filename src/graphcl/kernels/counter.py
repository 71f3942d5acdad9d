"""Random draws as a function of a counter: the same bits in any order, thread and device.

A key of two 32-bit words names a stream. Draw number ``c`` of the stream is a hash of ``c`` and the
key (the finaliser `lowbias32` of C. Wellons with the difference of the words mixed in half-way).
There is no state, so a draw is repeated where it is needed again and never stored. A stream can
start anywhere: adding the same number to both words of a key moves along the stream (`shifted`).

A probability is compared with 16 bits, so one draw of 32 bits decides for both views: the low half
for the first view and the high half for the second.
"""

from typing import NamedTuple

import numba
import numpy as np
import torch
from torch import Tensor

from graphcl.seeding import derive

WORD = 0xFFFFFFFF
STRIDE = 0x9E3779B9  # odd, so c · STRIDE takes every 32-bit value once
FIRST = 0x7FEB352D  # the two multipliers of lowbias32
SECOND = 0x846CA68B
HALVES = 1 << 16  # number of values of half a draw

Key = tuple[int, int]

_STRIDE, _FIRST, _SECOND = np.uint32(STRIDE), np.uint32(FIRST), np.uint32(SECOND)


class Draws(NamedTuple):
    """What decides a level's perturbation: two probabilities and three streams.

    Attributes:
        edge_drop: probability that a child is absent from its parent's mean.
        feature_drop: probability that a feature of a tree node is zero.
        edges: the stream of the edges to the children, one draw per child.
        parents: the stream of the parents' features.
        children: the stream of the children's features.
    """

    edge_drop: float
    feature_drop: float
    edges: Key
    parents: Key
    children: Key


def stream_key(seed: int, *path: str | int) -> Key:
    """Returns the key of the stream with this seed and path."""
    bits = derive(seed, *path)
    return bits & WORD, bits >> 32


def shifted(key: Key, places: int) -> Key:
    """Returns the key whose draw number ``c`` is draw number ``c + places`` of `key`."""
    moved = places * STRIDE
    return (key[0] + moved) & WORD, (key[1] + moved) & WORD


def threshold(probability: float) -> int:
    """Returns how many of the 65,536 values of half a draw mean that something is dropped.

    It is exact to within 1/131,072. At least one value keeps, so not everything is dropped.
    """
    return min(round(probability * HALVES), HALVES - 1)


def draw(counter: Tensor, key: Key | tuple[Tensor, Tensor]) -> Tensor:
    """Returns 32-bit draws as int64, of the shape of `counter` broadcast with the key."""
    x = (counter * STRIDE + key[0]) & WORD
    x = ((x ^ (x >> 16)) * FIRST) & WORD
    x = x ^ ((key[1] - key[0]) & WORD)
    x = ((x ^ (x >> 15)) * SECOND) & WORD
    return x ^ (x >> 16)


def kept(draws: Tensor, view: int, dropped: int) -> Tensor:
    """Returns, as booleans, which draws keep their edge or feature in view 0 or 1."""
    half = draws >> 16 if view else draws & (HALVES - 1)
    return half >= dropped


def row_keys(position: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """Returns one key per row of a table; draw ``c`` of a row's key belongs to column ``c``."""
    return draw(position, key), draw(position, (key[1], key[0]))


def positions(count: int, device: torch.device) -> Tensor:
    """Returns the counters 0 … count − 1."""
    return torch.arange(count, device=device)


@numba.njit(inline="always")
def draw_word(counter, word_0, word_1):  # type: ignore[no-untyped-def]
    """`draw` for numba, which widens 32-bit sums and products to 64: each step is cast back."""
    x = np.uint32(np.uint32(counter * _STRIDE) + word_0)
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(16))) * _FIRST)
    x = np.uint32(x ^ np.uint32(word_1 - word_0))
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(15))) * _SECOND)
    return np.uint32(x ^ np.uint32(x >> np.uint32(16)))
