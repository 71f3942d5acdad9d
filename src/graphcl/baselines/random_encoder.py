"""Our encoder with its initial weights: what the architecture achieves without training."""

from dataclasses import dataclass

import numpy as np
import torch

from graphcl.baselines.inputs import graphs_of
from graphcl.baselines.protocol import Baseline, Data, OnEpoch, Rows, silent
from graphcl.embedding import embed
from graphcl.encoders import build_encoder
from graphcl.graphs.tensors import graph_tensors
from graphcl.seeding import generator


@dataclass(frozen=True)
class RandomEncoder:
    """Encodes with random Glorot weights; nothing is trained.

    With equal fields and seed, GraphCL's training starts from the same weights.

    Attributes:
        encoder: as in a recipe.
        layers: as in a recipe.
        dim: as in a recipe.
        feature_scaling: as in a recipe.
    """

    encoder: str = "mean"
    layers: int = 2
    dim: int = 512
    feature_scaling: str = "row"

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, dim]``."""
        graphs = graphs_of(data)
        encoder = build_encoder(
            self.encoder,
            data.num_features,
            dim=self.dim,
            layers=self.layers,
            generator=generator(seed, "weights"),
        ).to(device)
        tables = []
        for done, graph in enumerate(graphs, 1):
            tensors = graph_tensors(graph, device=device, feature_scaling=self.feature_scaling)
            tables.append(embed(encoder, *tensors))
            on_epoch(done, len(graphs))
        return np.concatenate(tables)


# The fields are those of the shipped recipes; a test checks that they are equal.
BASELINE = Baseline(
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
