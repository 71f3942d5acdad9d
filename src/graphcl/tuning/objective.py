"""What tuning maximises: the validation score or, without labels, the stability of clusters.

Test labels are not used: when an objective is built, it copies the labels of training and
validation nodes and drops the rest of `y`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from graphcl.baselines.protocol import Data
from graphcl.errors import GraphError
from graphcl.evaluation.criteria import CLUSTERS, cluster_stability, validation_accuracy
from graphcl.evaluation.multilabel import multilabel_probe
from graphcl.evaluation.probe import node_split
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.damage import missing_features, missing_links
from graphcl.graphs.graph import Graph

# Fractions that the damaged versions lack: about what the paper advises to drop.
MISSING_LINKS, MISSING_FEATURES = 0.2, 0.5
Array = npt.NDArray[Any]
Embed = Callable[[Any], Any]


class Objective(Protocol):
    """A criterion that can be evaluated at any epoch."""

    @property
    def name(self) -> str:
        """Its name in reports."""

    @property
    def data(self) -> Data:
        """The data to train on."""

    def __call__(self, embed: Embed) -> float:
        """Returns the score of the encoder that `embed` applies to a graph; higher is better."""


@dataclass(frozen=True, eq=False)
class ValidationAccuracy:
    """The probe's validation accuracy; see `validation_accuracy`."""

    data: Graph
    nodes: Array
    y: Array
    train: Array
    name: str = "validation accuracy"

    @classmethod
    def of(cls, graph: Graph) -> "ValidationAccuracy":
        """Takes the labels of training and validation nodes out of the graph."""
        assert graph.y is not None
        train, val, _ = node_split(graph, graph.y, 0)
        nodes = np.concatenate([train, val])
        fit = np.arange(len(nodes)) < len(train)
        return cls(unlabelled(graph), nodes, graph.y[nodes], fit)

    def __call__(self, embed: Embed) -> float:
        """Returns the accuracy as a fraction."""
        return validation_accuracy(embed(self.data)[self.nodes], self.y, self.train)


@dataclass(frozen=True, eq=False)
class ValidationF1:
    """The probe's validation micro-F1 where nodes have several labels.

    The validation nodes also take the place of the probe's test nodes, so no test node is used.
    """

    data: Data
    train: Array
    val: Array
    y_train: Array
    y_val: Array
    device: torch.device
    steps: int
    name: str = "validation micro-F1"

    @classmethod
    def of(cls, data: Data, *, device: torch.device, steps: int) -> "ValidationF1":
        """Takes the labels of training and validation nodes out of the data."""
        assert data.y is not None
        train, val, _ = node_split(data, data.y, 0)
        labels = (data.y[train], data.y[val])
        return cls(unlabelled(data), train, val, *labels, device, steps)

    def __call__(self, embed: Embed) -> float:
        """Returns micro-F1."""
        z = embed(self.data)
        z = np.concatenate(z) if isinstance(z, list) else z
        train, val = z[self.train], z[self.val]
        return multilabel_probe(
            (train, val, val),
            (self.y_train, self.y_val, self.y_val),
            steps=self.steps,
            device=self.device,
        ).val_micro_f1


@dataclass(frozen=True, eq=False)
class ClusterStability:
    """The agreement of the embeddings' clusters in two damaged versions of the graph.

    It needs no labels. Clusters that reflect classes survive missing links and features; clusters
    that reflect single nodes or noise in the input do not. `graphcl reproduce criterion` measures
    how well it ranks settings on labelled graphs: it separates bad settings from good ones, but
    does not find the best of the good ones. (An earlier criterion, the recovery of held-out links,
    did not rank settings at all.)
    """

    data: Graph
    versions: tuple[Graph, Graph]
    name: str = "cluster stability"

    @classmethod
    def of(cls, graph: Graph, *, seed: int) -> "ClusterStability":
        """Draws the two versions; a graph that is mapped from a store is checked first."""
        graph.check()
        if graph.num_nodes < 2 * CLUSTERS:
            raise GraphError(
                f"{graph.name}: {graph.num_nodes} nodes are too few to cluster; tuning needs labels"
            )
        graph = unlabelled(graph)
        random = np.random.default_rng(seed)

        def version() -> Graph:
            fewer_links = missing_links(graph, MISSING_LINKS, random)
            return missing_features(fewer_links, MISSING_FEATURES, random)

        return cls(graph, (version(), version()))

    def __call__(self, embed: Embed) -> float:
        """Returns the adjusted Rand index of the two clusterings."""
        first, second = self.versions
        return cluster_stability(embed(first), embed(second))


def build_objective(
    data: Data, *, unsupervised: bool, seed: int, device: torch.device, probe_steps: int
) -> Objective:
    """Returns the objective for the data; it uses labels if there are any and it may.

    `seed` decides what damaged versions lack. Without labels there must be one graph. If nodes have
    several labels, the probe is trained on `device` for `probe_steps` steps.
    """
    if data.y is None or unsupervised:
        if isinstance(data, GraphCollection):
            raise GraphError(f"{data.name}: without labels, tuning needs a single graph")
        return ClusterStability.of(data, seed=seed)
    if isinstance(data, Graph) and data.y.ndim == 1:
        return ValidationAccuracy.of(data)
    return ValidationF1.of(data, device=device, steps=probe_steps)


def unlabelled(data: Data) -> Any:
    """Returns the data without labels; masks stay, because inductive training needs them."""
    if isinstance(data, GraphCollection):
        train, val, test = (
            tuple(map(unlabelled, part)) for part in (data.train, data.val, data.test)
        )
        return GraphCollection(train, val, test, name=data.name, note=data.note)
    kept = {name: value for name, value in vars(data).items() if name in Graph.__dataclass_fields__}
    return Graph(**kept | {"y": None})
