r"""Views: randomly perturbed versions of a graph, :math:`(\tilde X, \tilde A) \sim t(X, A)`.

A perturbation never changes its input. Two calls with one generator give two independent draws.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphcl.errors import require
from graphcl.kernels.csr import Adjacency, Features


def drop_edges(adjacency: Adjacency, edge_drop: float, generator: torch.Generator) -> Adjacency:
    """Returns a copy in which each undirected edge is absent with probability `edge_drop`.

    Both directions of an edge go or stay together, as the paper's graphs are undirected.
    """
    if edge_drop == 0:
        return adjacency
    keep = _bernoulli(adjacency.num_edges, 1 - edge_drop, adjacency.weight, generator)
    return adjacency.with_weight(adjacency.weight * keep[adjacency.edge_ids])


def drop_features(x: Features, feature_drop: float, generator: torch.Generator) -> Features:
    """Returns a copy in which each feature of each node is zero with probability `feature_drop`.

    The rest is scaled by ``1 / (1 - feature_drop)``, as dropout does. Of sparse features only the
    non-zeros are drawn for: dropping a zero changes nothing.
    """
    if feature_drop == 0:
        return x
    values = x if isinstance(x, Tensor) else x.values
    keep = _bernoulli(values.shape, 1 - feature_drop, values, generator)
    dropped = keep.mul_(values).div_(1 - feature_drop)
    return dropped if isinstance(x, Tensor) else x.with_values(dropped)


@dataclass(frozen=True)
class DropEdges:
    """`drop_edges` with its probability."""

    edge_drop: float

    def __post_init__(self) -> None:
        _require_probability(type(self).__name__, "edge_drop", self.edge_drop)

    def __call__(self, adjacency: Adjacency, generator: torch.Generator) -> Adjacency:
        """Draws one perturbed adjacency."""
        return drop_edges(adjacency, self.edge_drop, generator)


@dataclass(frozen=True)
class DropFeatures:
    """`drop_features` with its probability."""

    feature_drop: float

    def __post_init__(self) -> None:
        _require_probability(type(self).__name__, "feature_drop", self.feature_drop)

    def __call__(self, x: Features, generator: torch.Generator) -> Features:
        """Draws one perturbed feature table."""
        return drop_features(x, self.feature_drop, generator)


@dataclass(frozen=True)
class Perturbation:
    """The paper's t: edges and features dropped together, independently of each other."""

    drop_edges: DropEdges
    drop_features: DropFeatures

    def __call__(
        self, x: Features, adjacency: Adjacency, generator: torch.Generator
    ) -> tuple[Features, Adjacency]:
        """Draws one view."""
        return self.drop_features(x, generator), self.drop_edges(adjacency, generator)


def _bernoulli(
    size: int | torch.Size, probability: float, like: Tensor, generator: torch.Generator
) -> Tensor:
    drawn = torch.empty(size, dtype=like.dtype, device=like.device)
    if drawn.device.type == "cpu":  # in half the time, to a resolution of 2⁻²⁴
        return drawn.uniform_(generator=generator).lt_(probability)
    return drawn.bernoulli_(probability, generator=generator)


def _require_probability(owner: str, parameter: str, value: float) -> None:
    require(0 <= value < 1, owner, parameter, "in [0, 1)", value)
