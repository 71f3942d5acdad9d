r"""Systems without a trained network: raw features, what spreads over edges, vectors of words.

Features and labels that spread, and random weights, are not trained at all. DeepWalk and EP-B learn
a vector per node or word.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from scipy.sparse.csgraph import connected_components
from torch import Tensor, nn
from torch.nn.functional import relu

from graphcl.arrays import Doubles, Integers
from graphcl.embedding import embed
from graphcl.encoders import build_encoder
from graphcl.errors import TrainingError, demand, import_extra, require
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adam import Adam
from graphcl.kernels.adjacency import Adjacency, mean_pool
from graphcl.kernels.counter import draw_word, stream_key
from graphcl.kernels.features import Features, linear
from graphcl.kernels.parallel import parallel, prange
from graphcl.research.systems.layers import Symmetric
from graphcl.research.systems.system import (
    Checked,
    Data,
    Labelled,
    Labels,
    OnEpoch,
    Rows,
    System,
    graphs_of,
    require_one_graph,
    scaling_for,
    silent,
    train_epochs,
)
from graphcl.seeding import derive, generator
from graphcl.settings import check_setting

TOLERANCE = 1e-8


class _GraphByGraph(ABC):
    """A system that embeds each graph of a collection by itself."""

    feature_scaling: str = "none"

    @abstractmethod
    def encode(self, x: Features, adjacency: Adjacency, seed: int) -> Rows:
        """Returns the embeddings of one graph."""

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, dim]``; of several graphs one after another."""
        graphs, scaling = graphs_of(data), scaling_for(data, self.feature_scaling)
        tables = []
        for done, graph in enumerate(graphs, 1):
            tensors = graph_tensors(graph, device=device, feature_scaling=scaling)
            tables.append(self.encode(*tensors, seed))
            on_epoch(done, len(graphs))
        return np.concatenate(tables)


@dataclass(frozen=True)
class RawFeatures(_GraphByGraph):
    """Returns the features unchanged; nothing is learned and edges are ignored.

    Differs from the paper: its 47.9 / 49.3 / 69.1 come from a logistic regression whose penalty is
    not stated. Our probe chooses the penalty on validation nodes, as for every system, so the same
    features score higher.
    """

    def encode(self, x: Features, adjacency: Adjacency, seed: int) -> Rows:  # noqa: ARG002
        """Returns the features, dense."""
        return x.to_dense().cpu().numpy()


@dataclass(frozen=True)
class Propagation(_GraphByGraph):
    r"""Averages features over neighbourhoods `hops` times, :math:`\hat A^k X`.

    :math:`\hat A = \check D^{-1}(A + I)`, as in our encoders. With the probe on top this is the
    simplified graph convolution of Wu et al. (2019), with mean pooling in place of the symmetric
    normalisation. The paper does not include it, but a method that learns should beat it.

    Attributes:
        hops: k, how often Â is applied.
        feature_scaling: scaling of the features before that: ``none``, ``row``, ``unit``, ``auto``.
    """

    hops: int = 2
    feature_scaling: str = "row"

    def __post_init__(self) -> None:
        require(self.hops >= 0, "propagation", "hops", "0 or more", self.hops)
        check_setting("propagation", "feature_scaling", self.feature_scaling)

    def encode(self, x: Features, adjacency: Adjacency, seed: int) -> Rows:  # noqa: ARG002
        """Returns the smoothed features."""
        h = x.to_dense()
        for _ in range(self.hops):
            h = mean_pool(h, adjacency)
        return h.cpu().numpy()


@dataclass(frozen=True)
class RandomEncoder(_GraphByGraph):
    """Encodes with random Glorot weights: what the architecture achieves without training.

    With equal fields and seed, GraphCL's training starts from the same weights. The fields
    `encoder`, `layers`, `dim` and `feature_scaling` are those of a recipe.
    """

    encoder: str = "mean"
    layers: int = 2
    dim: int = 512
    feature_scaling: str = "row"

    def encode(self, x: Features, adjacency: Adjacency, seed: int) -> Rows:
        """Returns what the encoder with the weights of `seed` makes of a graph."""
        draw = generator(seed, "weights")
        encoder = build_encoder(
            self.encoder, x.shape[1], dim=self.dim, layers=self.layers, generator=draw
        )
        return embed(encoder.to(adjacency.weight.device), x, adjacency)


@dataclass(frozen=True)
class LabelPropagation:
    r"""Gives every node the mean label of its neighbours; training labels stay fixed.

    Those are the harmonic functions of Zhu et al., 2003.

    With nodes ordered into labelled :math:`l` and unlabelled :math:`u`, the harmonic function is

    .. math:: f_u = (D_{uu} - A_{uu})^{-1} A_{ul}\, f_l ,

    which is the limit of repeated averaging over neighbours. A node that no label reaches gets the
    class frequencies of the training labels. Features are ignored.

    Differs from the paper: edges have weight 1, or their weight in the graph; Zhu et al. derive
    weights from distances of features.

    Attributes:
        class_mass: scale each class so that its sum over the unlabelled nodes is its frequency
            among the training labels (class mass normalisation, section 4 of their paper). Without
            it, nearly all nodes of Pubmed get the same class.
    """

    class_mass: bool = True

    def fit_predict(
        self,
        data: Data,
        *,
        seed: int,  # noqa: ARG002 (nothing here is random)
        device: torch.device,  # noqa: ARG002 (a sparse solve on the CPU takes well under a second)
        on_epoch: OnEpoch = silent,
    ) -> Labels:
        """Returns the classes of all nodes, ``[num_nodes]``."""
        labels = Labelled.one_class(data, "label-propagation", validates=False)
        graph, one_hot = labels.graph, np.eye(labels.num_outputs)[labels.y]
        weight = graph.edge_weight
        values = np.ones(len(graph.indices)) if weight is None else weight.astype(np.float64)
        size = (graph.num_nodes, graph.num_nodes)
        adjacency = scipy.sparse.csr_array((values, graph.indices, graph.indptr), shape=size)
        frequency = one_hot.mean(axis=0)
        f = harmonic(adjacency, labels.nodes, one_hot, elsewhere=frequency)
        if self.class_mass:
            unlabelled = np.setdiff1d(np.arange(graph.num_nodes), labels.nodes)
            mass = f[unlabelled].sum(axis=0)
            f[unlabelled] *= frequency / np.where(mass > 0, mass, 1)
        on_epoch(1, 1)
        return np.asarray(f.argmax(axis=1))


def harmonic(
    adjacency: scipy.sparse.csr_array, labelled: Labels, values: Doubles, *, elsewhere: Doubles
) -> Doubles:
    """Returns the function that is `values` on `labelled` and the neighbours' mean elsewhere.

    `elsewhere` is the value of nodes in components without a labelled node.
    """
    _, component = connected_components(adjacency, directed=False)
    f = np.tile(elsewhere, (adjacency.shape[0], 1))
    f[labelled] = values
    # In a component with a label the Laplacian below is positive definite, as `cg` requires.
    free = np.isin(component, component[labelled])
    free[labelled] = False
    unknown = np.flatnonzero(free)
    if len(unknown) == 0:
        return f
    degree = scipy.sparse.diags_array(adjacency.sum(axis=1)[unknown])
    laplacian = (degree - adjacency[unknown][:, unknown]).tocsr()
    jacobi = scipy.sparse.diags_array(1 / laplacian.diagonal())
    given = adjacency[unknown][:, labelled] @ values
    for column in range(values.shape[1]):
        solved, status = scipy.sparse.linalg.cg(
            laplacian, given[:, column], rtol=TOLERANCE, M=jacobi, maxiter=10_000
        )
        demand(status == 0, "label-propagation: the linear solver did not converge", TrainingError)
        f[unknown, column] = solved
    return f


LABEL_PROPAGATION = System(
    "label-propagation",
    "Label propagation",
    LabelPropagation,
    deterministic=True,
    weighted=True,
)
RAW = System("raw", "Raw features", RawFeatures, deterministic=True)
PROPAGATION = System(
    "propagation",
    "Propagation ÂᵏX",
    Propagation,
    # The best of 2, 4, 8 and 12 hops and both scalings, by mean accuracy over six splits of the
    # train and validation nodes.
    settings={
        "cora": {"hops": 2, "feature_scaling": "none"},
        "citeseer": {"hops": 2, "feature_scaling": "none"},
        "pubmed": {"hops": 12, "feature_scaling": "row"},
    },
    deterministic=True,
    weighted=True,
)
# The fields are those of the shipped recipes; a test checks that they are equal.
RANDOM_ENCODER = System(
    "random-encoder",
    "Random encoder",
    RandomEncoder,
    settings={
        "citeseer": {"layers": 1, "feature_scaling": "none"},
        "pubmed": {"layers": 1},
        "ppi": {"encoder": "residual", "layers": 3, "feature_scaling": "none"},
    },
    weighted=True,
)


@dataclass(frozen=True)
class DeepWalk(Checked):
    """Skip-gram on random walks (Perozzi et al., 2014): nodes are words, walks are sentences.

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

    owner: ClassVar[str] = "deepwalk"
    dim: int = 128
    walks: int = 10
    length: int = 40
    window: int = 10
    negatives: int = 5
    learning_rate: float = 0.025
    epochs: int = 1
    workers: int = 1

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
        gensim = import_extra("gensim.models", feature="DeepWalk", extra="baselines")
        model = gensim.Word2Vec(
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

    def __init__(self, walks: Integers, on_epoch: OnEpoch, epochs: int) -> None:
        self._walks, self._on_epoch, self._epochs = walks, on_epoch, epochs
        self._passes = 0

    def __iter__(self) -> Iterator[list[int]]:
        # In parts: lists of all walks at once would take several times the array's memory.
        for part in np.array_split(self._walks, 100):
            yield from part.tolist()
        if self._passes:  # the first pass only builds the vocabulary
            self._on_epoch(self._passes, self._epochs)
        self._passes += 1


def random_walks(
    indptr: Integers, indices: Integers, starts: Integers, *, length: int, seed: int
) -> Integers:
    """Returns one walk per start, ``[len(starts), length]``, the start first.

    Each neighbour of a node is equally likely to be the next. A draw depends only on the seed and
    the step's position, so the number of threads does not matter. A walk from a node without
    neighbours stays there. The graph is CSR; `starts` may repeat nodes.
    """
    walks = np.empty((len(starts), length), dtype=np.int64)
    key = stream_key(seed, "walks")
    _walk(indptr, indices, starts, np.uint32(key[0]), np.uint32(key[1]), walks)
    return walks


@parallel
def _walk(indptr: Any, indices: Any, starts: Any, word_0: Any, word_1: Any, walks: Any) -> None:
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


@dataclass(frozen=True)
class EPB(Checked):
    r"""Learns an embedding per label so that the neighbours' labels predict a node's own labels.

    It is embedding propagation (García-Durán and Niepert, 2017).

    A node has labels of two types *i*: its words (non-zero features) and its identity. For each
    type, the embedding is the mean over the node's labels, and the reconstruction is the mean over
    the labels of all its neighbours, where a label counts as often as it occurs:

    .. math:: h_i(v) = \operatorname{mean}_{l \in l_i(v)} e_l , \qquad
        \tilde h_i(v) = \operatorname{mean}_{u \in N(v),\, l \in l_i(u)} e_l .

    Each type is trained by a margin ranking loss with the Euclidean distance *d* against uniformly
    drawn nodes *u*:

    .. math:: L_i = \sum_v \big[\gamma + d(\tilde h_i(v), h_i(v)) - d(\tilde h_i(v), h_i(u))\big]_+

    A node's embedding is the concatenation of its :math:`h_i(v)`. If it has no label of a type,
    :math:`\tilde h_i(v)` is used instead. Real features (Pubmed's TF-IDF) weight the means.

    Differs from the paper: a step covers all nodes, each with a newly drawn *u*, at a higher
    learning rate, instead of many small batches; this keeps a GPU busy. Margin and learning rate
    have the best mean validation accuracy: on Cora and Citeseer among a few values, on Pubmed in a
    grid (`python -m benchmarks.search_baselines ep-b`).

    Attributes:
        dim: width of the embedding of each type; the result is twice as wide.
        margin: γ.
        learning_rate: Adam's, falling linearly to 0.
        epochs: steps, each over all nodes.
    """

    owner: ClassVar[str] = "ep-b"
    dim: int = 128
    margin: float = 5.0
    learning_rate: float = 0.05
    epochs: int = 500

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, 2 · dim]``: words, then identity."""
        graph = require_one_graph(data, "ep-b")
        x, adjacency = graph_tensors(graph, device=device)
        draw = generator(seed, "ep-b", "weights")
        words = _LabelType(x, graph.num_features, self.dim, adjacency=adjacency, draw=draw)
        identity = _LabelType(None, graph.num_nodes, self.dim, adjacency=adjacency, draw=draw)
        types = nn.ModuleList([words, identity]).to(device)
        optimiser = Adam(types.parameters(), lr=self.learning_rate)
        others = generator(seed, "ep-b", "others", device=device)

        def losses(epoch: int) -> Iterator[Tensor]:
            optimiser.param_groups[0]["lr"] = self.learning_rate * (1 - epoch / self.epochs)
            size = (graph.num_nodes,)
            u = torch.randint(graph.num_nodes, size, generator=others, device=device)
            yield words.loss(u, self.margin) + identity.loss(u, self.margin)

        train_epochs(optimiser, losses, epochs=self.epochs, owner="ep-b", on_epoch=on_epoch)
        with torch.no_grad():
            z = torch.cat([words.representation(), identity.representation()], dim=1)
        return z.cpu().numpy()


class _LabelType(nn.Module):
    """The embeddings of one type of labels.

    `counts` is the weight of each label at each node, ``[num_nodes, num_labels]``; None if the only
    label of node v is v.
    """

    def __init__(
        self,
        counts: Features | None,
        num_labels: int,
        dim: int,
        *,
        adjacency: Adjacency,
        draw: torch.Generator,
    ) -> None:
        super().__init__()
        table = torch.empty(num_labels, dim).uniform_(-0.5, 0.5, generator=draw)
        self.table = nn.Parameter(table)
        self._counts, self._around = counts, Symmetric.plain(adjacency)
        mass = adjacency.weight.new_ones(adjacency.num_nodes, 1)
        if counts is not None:
            mass = linear(_absolute(counts), adjacency.weight.new_ones(num_labels, 1))
        mass_around = self._around @ mass
        self._has_labels, self._has_around = mass > 0, mass_around > 0
        self._mass, self._mass_around = mass.clamp(min=1e-12), mass_around.clamp(min=1e-12)
        # A node enters the loss only if both its h and its h̃ exist.
        self._ranked = (self._has_labels & self._has_around)[:, 0].float()

    def embeddings(self) -> tuple[Tensor, Tensor]:
        """Returns h and h̃, each ``[num_nodes, dim]``."""
        total = self.table if self._counts is None else linear(self._counts, self.table)
        return total / self._mass, (self._around @ total) / self._mass_around

    def loss(self, u: Tensor, margin: float) -> Tensor:
        """Returns the ranking loss against the nodes `u`, averaged over nodes."""
        h, rebuilt = self.embeddings()
        excess = margin + _distance(rebuilt, h) - _distance(rebuilt, h[u])
        ranked = self._ranked * self._ranked[u]
        return (relu(excess) * ranked).sum() / ranked.sum().clamp(min=1)

    def representation(self) -> Tensor:
        """Returns h, and h̃ for nodes that have no label of this type."""
        h, rebuilt = self.embeddings()
        return torch.where(self._has_labels, h, rebuilt)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return ((a - b).square().sum(1) + 1e-12).sqrt()  # keeps the gradient at 0 finite


def _absolute(counts: Features) -> Features:
    return counts.abs() if isinstance(counts, Tensor) else counts.with_values(counts.values.abs())


SYSTEMS = (
    System("deepwalk", "DeepWalk", DeepWalk),
    System("deepwalk-features", "DeepWalk + features", DeepWalkFeatures),
    System("ep-b", "EP-B", EPB, weighted=True),
)
