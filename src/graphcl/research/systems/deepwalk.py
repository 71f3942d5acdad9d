"""DeepWalk (Perozzi, Al-Rfou, Skiena, 2014), with and without the raw features."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numba
import numpy as np
import numpy.typing as npt
import torch

from graphcl.errors import MissingExtraError
from graphcl.kernels.counter import draw_word, stream_key
from graphcl.kernels.parallel import parallel
from graphcl.research.systems.fitting import check_fields
from graphcl.research.systems.inputs import require_one_graph
from graphcl.research.systems.protocol import Baseline, Data, OnEpoch, Rows, silent
from graphcl.research.systems.untrained import RawFeatures
from graphcl.seeding import derive

prange = cast("Any", numba.prange)

Nodes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DeepWalk:
    """Skip-gram on random walks: nodes are words, walks are sentences.

    Features and edge weights are ignored.

    Gensim trains the skip-gram model, on the CPU whatever the device. With one worker the result is
    reproducible bit for bit. With several it is not, because gensim's workers race.

    Differs from the paper: we use negative sampling instead of the slower hierarchical softmax, and
    10 walks from each node instead of 80. On Cora's validation nodes 20 and 40 do no better.

    Attributes:
        dim: width of the embedding.
        walks: walks from each node.
        length: nodes in a walk.
        window: maximum distance of two nodes in a walk that form a pair.
        negatives: negative samples per pair.
        learning_rate: initial rate of the gradient descent; gensim lowers it linearly.
        epochs: passes over the walks.
        workers: threads.
    """

    dim: int = 128
    walks: int = 10
    length: int = 40
    window: int = 10
    negatives: int = 5
    learning_rate: float = 0.025
    epochs: int = 1
    workers: int = 1

    def __post_init__(self) -> None:
        check_fields("deepwalk", **vars(self))

    def embed(
        self,
        data: Data,
        *,
        seed: int,
        device: torch.device,  # noqa: ARG002 (gensim runs on the CPU only)
        on_epoch: OnEpoch = silent,
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, dim]``."""
        graph = require_one_graph(data, "deepwalk")
        # Each round starts one walk at every node, in a new random order (the paper's algorithm 1).
        starts = np.concatenate(
            [
                np.random.default_rng(derive(seed, "starts", number)).permutation(graph.num_nodes)
                for number in range(self.walks)
            ]
        )
        indices = np.asarray(graph.indices, dtype=np.int64)  # a store may have int32
        walks = random_walks(
            graph.indptr, indices, starts, length=self.length, seed=derive(seed, "walks")
        )
        model = _word2vec()(
            _Sentences(walks, on_epoch, self.epochs),
            vector_size=self.dim,
            window=self.window,
            negative=self.negatives,
            alpha=self.learning_rate,
            epochs=self.epochs,
            workers=self.workers,
            seed=derive(seed, "skip-gram") % 2**32,
            sg=1,
            min_count=1,
            sample=0,
        )
        z = np.empty((graph.num_nodes, self.dim), dtype=np.float32)
        z[np.asarray(model.wv.index_to_key)] = model.wv.vectors
        return z


@dataclass(frozen=True)
class DeepWalkFeatures(DeepWalk):
    """DeepWalk's embeddings concatenated with the raw features."""

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the concatenation, ``[num_nodes, dim + num_features]``."""
        walked = super().embed(data, seed=seed, device=device, on_epoch=on_epoch)
        x = RawFeatures().embed(data, seed=seed, device=device)
        return np.concatenate([walked, x], axis=1)


class _Sentences:
    """The walks as gensim reads them: once for the vocabulary, then once per epoch."""

    def __init__(self, walks: Nodes, on_epoch: OnEpoch, epochs: int) -> None:
        self._walks, self._on_epoch, self._epochs = walks, on_epoch, epochs
        self._passes = 0

    def __iter__(self) -> Iterator[list[int]]:
        # In parts: lists of all walks at once would take several times the array's memory.
        for part in np.array_split(self._walks, 100):
            yield from part.tolist()
        if self._passes:  # the first pass only builds the vocabulary
            self._on_epoch(self._passes, self._epochs)
        self._passes += 1


def _word2vec() -> Any:
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise MissingExtraError("DeepWalk", "baselines") from error
    return Word2Vec


def random_walks(indptr: Nodes, indices: Nodes, starts: Nodes, *, length: int, seed: int) -> Nodes:
    """Returns one walk per start, ``[len(starts), length]``, the start first.

    Each neighbour of a node is equally likely to be the next. A draw depends only on the seed and
    the step's position, so the number of threads does not matter. A walk from a node without
    neighbours stays there. The graph is CSR; `starts` may repeat nodes.
    """
    walks = np.empty((len(starts), length), dtype=np.int64)
    key = stream_key(seed, "walks")
    _walk(indptr, indices, starts, np.uint32(key[0]), np.uint32(key[1]), walks)
    return walks


def _walk_loop(
    indptr: Any, indices: Any, starts: Any, word_0: Any, word_1: Any, walks: Any
) -> None:
    for row in prange(len(starts)):
        # Each walk has its own key: one 32-bit counter over all steps would repeat after 2^32.
        own_0 = draw_word(np.uint32(row), word_0, word_1)
        own_1 = draw_word(np.uint32(row), word_1, word_0)
        node = starts[row]
        walks[row, 0] = node
        for step in range(1, walks.shape[1]):
            begin = indptr[node]
            degree = indptr[node + 1] - begin
            if degree > 0:
                # Multiply and shift: maps 32 random bits to 0 .. degree - 1 without a division.
                word = np.uint64(draw_word(np.uint32(step), own_0, own_1))
                node = indices[begin + np.int64((word * np.uint64(degree)) >> np.uint64(32))]
            walks[row, step] = node


_walk = parallel(_walk_loop)


PAPER = "Perozzi et al., DeepWalk: Online Learning of Social Representations, 2014"
BASELINE = Baseline("deepwalk", "DeepWalk", DeepWalk, paper=PAPER)
WITH_FEATURES = Baseline("deepwalk-features", "DeepWalk + features", DeepWalkFeatures, paper=PAPER)
