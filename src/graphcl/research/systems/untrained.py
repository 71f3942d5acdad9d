r"""Embeddings without training: raw features, propagation, and our encoder's initial weights."""

from dataclasses import dataclass

import numpy as np
import torch

from graphcl.embedding import embed
from graphcl.encoders import build_encoder
from graphcl.errors import require
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.tensors import FEATURE_SCALINGS, feature_tensor, graph_tensors
from graphcl.kernels.adjacency import mean_pool
from graphcl.research.systems.fitting import dense
from graphcl.research.systems.inputs import graphs_of, scaling_for
from graphcl.research.systems.protocol import Baseline, Data, OnEpoch, Rows, silent
from graphcl.seeding import generator


@dataclass(frozen=True)
class RawFeatures:
    """Returns the features unchanged; nothing is learned and edges are ignored.

    Differs from the paper: its 47.9 / 49.3 / 69.1 come from a logistic regression whose penalty is
    not stated. Our probe chooses the penalty on validation nodes, as for every system, so the same
    features score higher.
    """

    def embed(
        self,
        data: Data,
        *,
        seed: int,  # noqa: ARG002 (nothing here is random)
        device: torch.device,  # noqa: ARG002
        on_epoch: OnEpoch = silent,
    ) -> Rows:
        """Returns the features, dense, ``[num_nodes, num_features]``."""
        cpu = torch.device("cpu")
        tables = [dense(feature_tensor(graph, device=cpu)) for graph in graphs_of(data)]
        on_epoch(1, 1)
        return np.concatenate(tables)


@dataclass(frozen=True)
class Propagation:
    r"""Averages features over neighbourhoods `hops` times, :math:`\hat A^k X`.

    :math:`\hat A = \check D^{-1}(A + I)`, as in our encoders. With the probe on top this is the
    simplified graph convolution of Wu et al. (2019), with mean pooling in place of the symmetric
    normalisation. The paper does not include it, but a method that learns should beat it.

    Attributes:
        hops: k, how often Â is applied.
        feature_scaling: scaling of the features before that: ``none``, ``row`` or ``auto``.
    """

    hops: int = 2
    feature_scaling: str = "row"

    def __post_init__(self) -> None:
        known = " or ".join(FEATURE_SCALINGS)
        require(self.hops >= 0, "propagation", "hops", "0 or more", self.hops)
        scaling = self.feature_scaling
        require(scaling in FEATURE_SCALINGS, "propagation", "feature_scaling", known, scaling)

    def embed(
        self,
        data: Data,
        *,
        seed: int,  # noqa: ARG002 (nothing here is random)
        device: torch.device,
        on_epoch: OnEpoch = silent,
    ) -> Rows:
        """Returns the smoothed features, ``[num_nodes, num_features]``."""
        graphs, scaling = graphs_of(data), scaling_for(data, self.feature_scaling)
        tables = []
        for done, graph in enumerate(graphs, 1):
            tables.append(self._smooth(graph, scaling, device))
            on_epoch(done, len(graphs))
        return np.concatenate(tables)

    def _smooth(self, graph: Graph, scaling: Scaling, device: torch.device) -> Rows:
        x, adjacency = graph_tensors(graph, device=device, feature_scaling=scaling)
        h = dense(x)
        for _ in range(self.hops):
            h = mean_pool(h, adjacency)
        return h.cpu().numpy()


@dataclass(frozen=True)
class RandomEncoder:
    """Encodes with random Glorot weights: what the architecture achieves without training.

    With equal fields and seed, GraphCL's training starts from the same weights. The fields
    `encoder`, `layers`, `dim` and `feature_scaling` are those of a recipe.
    """

    encoder: str = "mean"
    layers: int = 2
    dim: int = 512
    feature_scaling: str = "row"

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, dim]``."""
        graphs, scaling = graphs_of(data), scaling_for(data, self.feature_scaling)
        encoder = build_encoder(
            self.encoder,
            data.num_features,
            dim=self.dim,
            layers=self.layers,
            generator=generator(seed, "weights"),
        ).to(device)
        tables = []
        for done, graph in enumerate(graphs, 1):
            tensors = graph_tensors(graph, device=device, feature_scaling=scaling)
            tables.append(embed(encoder, *tensors))
            on_epoch(done, len(graphs))
        return np.concatenate(tables)


RAW = Baseline("raw", "Raw features", RawFeatures, deterministic=True)
PROPAGATION = Baseline(
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
RANDOM_ENCODER = Baseline(
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
