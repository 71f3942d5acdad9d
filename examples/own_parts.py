"""Train with your own encoder, perturbation and loss; then save, load, embed and report.

The package itself is not changed. Each part is a small class that follows a documented protocol:
`graphcl.encoders`, `graphcl.views.Perturbation` and `graphcl.losses.Loss`.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import graphcl
from graphcl.cli.main import run
from graphcl.encoders import Layer, LayeredEncoder, glorot


class NormedEncoder(LayeredEncoder):
    """Mean pooling plus the node's own row, with layer normalisation and ReLU.

    It states its layers, so it supports everything that the built-in encoders do: sampled training,
    inference in blocks, and recorded steps on a GPU.
    """

    def __init__(
        self, num_features: int, *, dim: int, layers: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        shapes = list(pairwise([num_features] + [dim] * layers))
        self.pooled = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.own = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in shapes)
        glorot(self, generator)

    def layer_specs(self) -> tuple[Layer, ...]:
        """Returns the layers; the last one is linear."""
        last = len(self.norms) - 1
        parts = zip(self.pooled, self.own, self.norms, strict=True)
        return tuple(
            Layer(
                pooled,
                own,
                normalisation=norm if number < last else None,
                activation=torch.relu if number < last else None,
            )
            for number, (pooled, own, norm) in enumerate(parts)
        )


@dataclass(frozen=True)
class DropColumns:
    """A view that drops whole columns of features, for all nodes."""

    column_drop: float = 0.3

    def __call__(self, x, adjacency, generator):
        """Draws one view; the edges stay as they are."""
        device = generator.device
        keep = torch.rand(x.shape[1], generator=generator, device=device) >= self.column_drop
        scale = keep.float() / (1 - self.column_drop)
        if isinstance(x, Tensor):
            return x * scale, adjacency
        return x.with_values(x.values * scale[x.indices]), adjacency


@dataclass(frozen=True)
class Redundancy:
    """The loss of Barlow Twins: columns agree between the views, and differ from each other."""

    weight: float = 0.01

    def __call__(self, h_1: Tensor, h_2: Tensor) -> Tensor:
        """Returns the loss between two views of a batch."""
        z_1, z_2 = ((h - h.mean(0)) / h.std(0).clamp(min=1e-6) for h in (h_1, h_2))
        correlation = z_1.T @ z_2 / len(h_1)
        wanted = torch.eye(len(correlation), device=correlation.device)
        importance = torch.where(wanted > 0, 1.0, self.weight)
        return mse_loss(correlation * importance, wanted, reduction="sum")


def main() -> None:
    """Trains on Cora with all three parts and evaluates the result."""
    graph = graphcl.load_dataset("cora")
    own = {"encoder": NormedEncoder, "perturbation": DropColumns(0.4), "loss": Redundancy()}
    model = graphcl.GraphCL(recipe="cora", epochs=30, dim=64, **own).fit(graph)
    model.save("runs/own-parts", graph=graph, overwrite=True)

    # A run stores the name of its encoder's class and never imports it, so it is passed again.
    again = graphcl.GraphCL.load("runs/own-parts", encoder=NormedEncoder)
    print(f"{graphcl.linear_probe(again.transform(graph), graph).accuracy:.3f}")
    run(["report", "runs/own-parts", "--overwrite"])


if __name__ == "__main__":
    main()
