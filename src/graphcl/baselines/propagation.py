r"""Propagation without training, :math:`\hat A^k X`: what smoothing alone achieves."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphcl.baselines.inputs import graphs_of
from graphcl.baselines.protocol import Baseline, Data, OnEpoch, Rows, silent
from graphcl.errors import require
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import FEATURE_SCALINGS, graph_tensors
from graphcl.kernels.adjacency import mean_pool


@dataclass(frozen=True)
class Propagation:
    r"""Averages features over neighbourhoods `hops` times; nothing is trained.

    :math:`\hat A = \check D^{-1}(A + I)`, as in our encoders. With the probe on top this is the
    simplified graph convolution of Wu et al. (2019), with mean pooling in place of the symmetric
    normalisation. The paper does not include it, but a method that learns should beat it.

    Attributes:
        hops: k, how often Â is applied.
        feature_scaling: scaling of the features before that: ``none`` or ``row``.
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
        graphs = graphs_of(data)
        tables = []
        for done, graph in enumerate(graphs, 1):
            tables.append(self._smooth(graph, device))
            on_epoch(done, len(graphs))
        return np.concatenate(tables)

    def _smooth(self, graph: Graph, device: torch.device) -> Rows:
        x, adjacency = graph_tensors(graph, device=device, feature_scaling=self.feature_scaling)
        h = x if isinstance(x, Tensor) else x.to_dense()
        for _ in range(self.hops):
            h = mean_pool(h, adjacency)
        return h.cpu().numpy()


BASELINE = Baseline(
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
