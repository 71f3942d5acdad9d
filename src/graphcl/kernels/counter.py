"""Random draws as a function of a counter: the same bits in any order, thread and device.

A key of two 32-bit words names a stream. Draw number ``c`` of the stream is a hash of ``c`` and the
key (the finaliser `lowbias32` of C. Wellons with the difference of the words mixed in half-way).
There is no state, so a draw is repeated where it is needed again and never stored. Streams nest:
two draws of a stream are the key of another. So a draw can belong to a thing, such as an
edge, and not to the place where it is met.

A probability is compared with 16 bits, so one draw of 32 bits decides for both views: the low half
for the first view and the high half for the second.
"""

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numba
import numpy as np

from graphcl.seeding import derive

if TYPE_CHECKING:  # the words for numba serve commands that need no torch, such as `check`
    import torch
    from torch import Tensor

WORD = 0xFFFFFFFF
STRIDE = 0x9E3779B9  # odd, so c · STRIDE takes every 32-bit value once
FIRST = 0x7FEB352D  # the two multipliers of lowbias32
SECOND = 0x846CA68B
HALVES = 1 << 16  # number of values of half a draw

Key = tuple[int, int]
Keys: TypeAlias = "tuple[int | Tensor, int | Tensor]"  # one key, or one per draw
Seed: TypeAlias = "int | DeviceSeed"

_STRIDE, _FIRST, _SECOND = np.uint32(STRIDE), np.uint32(FIRST), np.uint32(SECOND)


class Draws(NamedTuple):
    """What decides a level's perturbation along one direction: two probabilities and two streams.

    A seed node's tree is perturbed as one graph: its draws belong to the edge, by its two ends, or
    to the node, wherever in the tree these occur. Different seed nodes have different draws.

    Attributes:
        edge_drop: probability that an edge is absent.
        feature_drop: probability that a feature of a node is zero.
        edges: the stream of the edges.
        features: the stream of the features.
        within: whether parents and children are of one type, and a parent is in its own mean.
        order: which end of an edge counts first: 0, of an undirected edge, the smaller number;
            1 the child, 2 the parent. So an edge has one draw in both directions.
    """

    edge_drop: float
    feature_drop: float
    edges: Keys
    features: Keys
    within: bool = True
    order: int = 0


def stream_key(seed: int, *path: str | int) -> Key:
    """Returns the key of the stream with this seed and path."""
    bits = derive(seed, *path)
    return bits & WORD, bits >> 32


def step_key(seed: Seed, *path: str | int) -> Keys:
    """`stream_key` of a seed that may be on a GPU."""
    return seed.key(path) if isinstance(seed, DeviceSeed) else stream_key(seed, *path)


class DeviceSeed:
    """A seed that is set before each step, and whose keys are on a GPU.

    A recorded step (`graphcl.kernels.recording`) reads the same memory at every replay. It so draws
    by the seed that was set last. The draws are those of the number itself.
    """

    MOST = 1 << 16  # streams; a graph of many relations has some for each hop and direction

    def __init__(self, device: "torch.device") -> None:
        import torch

        self._seed = 0
        self._places: dict[tuple[str | int, ...], int] = {}
        self._words = torch.zeros(self.MOST, 2, dtype=torch.int64, device=device)

    def set(self, seed: int) -> None:
        """Changes the seed, and the keys of all streams that were asked for so far."""
        self._seed = seed
        self._write(list(self._places), 0)

    def key(self, path: tuple[str | int, ...]) -> "tuple[Tensor, Tensor]":
        """Returns the key of the stream with this path, as two tensors."""
        if path not in self._places:
            self._places[path] = len(self._places)
            self._write([path], self._places[path])
        word_0, word_1 = self._words[self._places[path]]
        return word_0, word_1

    def _write(self, paths: "list[tuple[str | int, ...]]", first: int) -> None:
        import torch

        if paths:
            words = torch.tensor([stream_key(self._seed, *path) for path in paths])
            words = words.pin_memory() if self._words.is_cuda else words
            self._words[first : first + len(paths)].copy_(words, non_blocking=True)


def threshold(probability: float) -> int:
    """Returns how many of the 65,536 values of half a draw mean that something is dropped.

    It is exact to within 1/131,072. At least one value keeps, so not everything is dropped.
    """
    return min(round(probability * HALVES), HALVES - 1)


def draw(counter: "Tensor", key: Keys) -> "Tensor":
    """Returns 32-bit draws as int64, of the shape of `counter` broadcast with the key."""
    x = (counter * STRIDE + key[0]) & WORD
    x = ((x ^ (x >> 16)) * FIRST) & WORD
    x = x ^ ((key[1] - key[0]) & WORD)
    x = ((x ^ (x >> 15)) * SECOND) & WORD
    return x ^ (x >> 16)


def kept(draws: "Tensor", view: int, dropped: int) -> "Tensor":
    """Returns, as booleans, which draws keep their edge or feature in view 0 or 1."""
    half = draws >> 16 if view else draws & (HALVES - 1)
    return half >= dropped


@numba.njit(inline="always")
def draw_word(counter, word_0, word_1):  # type: ignore[no-untyped-def]
    """`draw` for numba, which widens 32-bit sums and products to 64: each step is cast back."""
    x = np.uint32(np.uint32(counter * _STRIDE) + word_0)
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(16))) * _FIRST)
    x = np.uint32(x ^ np.uint32(word_1 - word_0))
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(15))) * _SECOND)
    return np.uint32(x ^ np.uint32(x >> np.uint32(16)))


@numba.njit
def draw_long_word(number, word_0, word_1):  # type: ignore[no-untyped-def]
    """`draw_word` of any int64 from 0 on: both of its words count. Below 2^32 they are the same."""
    beyond = np.uint32(np.uint32(number >> 32) * _FIRST)
    return draw_word(np.uint32(number), word_0, np.uint32(word_1 + beyond))
