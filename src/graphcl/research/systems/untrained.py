r"""Systems without training: raw features, features and labels that spread, random weights."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse
import scipy.sparse.linalg
import torch
from scipy.sparse.csgraph import connected_components

from graphcl.embedding import embed
from graphcl.encoders import build_encoder
from graphcl.errors import TrainingError, require
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adjacency import Adjacency, mean_pool
from graphcl.kernels.features import Features
from graphcl.research.systems.layers import dense
from graphcl.research.systems.system import (
    Data,
    Labelled,
    Labels,
    OnEpoch,
    Rows,
    System,
    graphs_of,
    scaling_for,
    silent,
)
from graphcl.seeding import generator
from graphcl.settings import check_setting

Floats = npt.NDArray[np.float64]
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
        return dense(x).cpu().numpy()


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
        h = dense(x)
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
        classes: Labels = f.argmax(axis=1)
        return classes


def harmonic(
    adjacency: scipy.sparse.csr_array, labelled: Labels, values: Floats, *, elsewhere: Floats
) -> Floats:
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
        if status != 0:
            raise TrainingError("label-propagation: the linear solver did not converge")
        f[unknown, column] = solved
    return f


LABEL_PROPAGATION = System(
    "label-propagation",
    "Label propagation",
    LabelPropagation,
    paper="Zhu et al., Semi-Supervised Learning Using Gaussian Fields and Harmonic Functions, 2003",
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
    paper="Wu et al., Simplifying Graph Convolutional Networks, 2019",
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
