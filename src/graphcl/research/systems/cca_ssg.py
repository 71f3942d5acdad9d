r"""CCA-SSG: from canonical correlation analysis to self-supervised GNNs (Zhang et al., 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adam import Adam
from graphcl.research.systems.convolutions import Convolutions, draw_view, repeat_step
from graphcl.research.systems.fitting import Symmetric, check_fields, descend
from graphcl.research.systems.inputs import require_one_graph, scaling_for
from graphcl.research.systems.protocol import Baseline, Data, OnEpoch, Rows, silent
from graphcl.seeding import generator

SMALLEST = 1e-12  # a column of equal values becomes zeros


def standardise(h: Tensor) -> Tensor:
    """Returns the columns of `h` with mean 0 and deviation 1 (n − 1), as in the authors' code."""
    return (h - h.mean(0)) / h.std(0).clamp(min=SMALLEST)


def cca_loss(z_1: Tensor, z_2: Tensor, decorrelation: float) -> Tensor:
    r"""Returns the loss between two standardised views, ``[N, dim]`` each.

    .. math:: L = -\frac1N \operatorname{tr}(Z_1^\top Z_2) + \lambda \sum_{i=1}^{2}
        \Big\lVert \frac1N Z_i^\top Z_i - I \Big\rVert_F^2

    The first term pulls the two views of a node together, the second removes the correlation
    between columns. The paper scales Z by :math:`1/\sqrt N`, and has :math:`\lVert Z_1 -
    Z_2\rVert_F^2`, twice the first term plus a constant.
    """
    same = torch.eye(z_1.shape[1], dtype=z_1.dtype, device=z_1.device)
    apart = sum((z.T @ z / len(z) - same).square().sum() for z in (z_1, z_2))
    return -(z_1 * z_2).sum() / len(z_1) + decorrelation * apart


@dataclass(frozen=True)
class CCASSG:
    r"""Graph convolutions, trained by `cca_loss` between two views from the same distribution.

    ReLU stands between layers and not after the last. A view drops edges and masks whole columns of
    features. There is neither a projection nor a negative. Edge weights are used as in a GCN.

    Differs from the authors' code: both directions of an edge are dropped together.

    Attributes:
        dim: width of every layer and of the embedding.
        layers: number of convolutions.
        edge_drop: rate at which a view loses edges.
        feature_drop: rate at which a view's columns are masked.
        decorrelation: λ.
        learning_rate: Adam's.
        epochs: steps, each over all nodes.
        feature_scaling: scaling of the features: ``none``, ``row`` or ``auto``.
    """

    dim: int = 512
    layers: int = 2
    edge_drop: float = 0.2
    feature_drop: float = 0.2
    decorrelation: float = 1e-3
    learning_rate: float = 1e-3
    epochs: int = 100
    feature_scaling: str = "none"

    def __post_init__(self) -> None:
        check_fields("cca-ssg", **vars(self))

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, dim]``, before they are standardised."""
        graph = require_one_graph(data, "cca-ssg")
        scaling = scaling_for(graph, self.feature_scaling)
        x, adjacency = graph_tensors(graph, device=device, feature_scaling=scaling)
        draw = generator(seed, "cca-ssg", "weights")
        widths = (graph.num_features, *[self.dim] * self.layers)
        encoder = Convolutions(widths, draw=draw, last=False).to(device)
        optimiser = Adam(
            encoder.parameters(),
            lr=self.learning_rate,
            fused=True,
            capturable=device.type == "cuda",
        )

        def step(draws: torch.Generator) -> Tensor:
            views = [
                draw_view(
                    x,
                    adjacency,
                    edge_drop=self.edge_drop,
                    feature_drop=self.feature_drop,
                    generator=draws,
                )
                for _ in range(2)
            ]
            z_1, z_2 = (standardise(encoder(*view)) for view in views)
            return descend(optimiser, cca_loss(z_1, z_2, self.decorrelation))

        repeat_step(
            step, epochs=self.epochs, seed=seed, owner="cca-ssg", device=device, on_epoch=on_epoch
        )
        with torch.no_grad():
            h: Tensor = encoder(x, Symmetric.normalised(adjacency))
        return h.cpu().numpy()


# The settings are those of the authors' commands; DGL, which they read these graphs with, scales
# rows. Other graphs get the defaults of their program.
BASELINE = Baseline(
    "cca-ssg",
    "CCA-SSG",
    CCASSG,
    settings={
        "cora": {"epochs": 50, "edge_drop": 0.4, "feature_drop": 0.1, "feature_scaling": "row"},
        "citeseer": {
            "layers": 1,
            "epochs": 20,
            "edge_drop": 0.4,
            "feature_drop": 0.0,
            "decorrelation": 5e-4,
            "feature_scaling": "row",
        },
        "pubmed": {"epochs": 100, "edge_drop": 0.5, "feature_drop": 0.3, "feature_scaling": "row"},
    },
    paper="Zhang et al., From CCA to Self-supervised Graph Neural Networks, 2021",
    weighted=True,
)
