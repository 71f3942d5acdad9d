"""What tuning maximises: validation accuracy, or, without labels, how stable clusters are.

Test labels never get here: an objective takes the labels of training and validation nodes out of
the graph when it is built, and keeps nothing else of `y`.
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

MISSING_LINKS, MISSING_FEATURES = 0.2, 0.5  # in the versions: about what the paper advises to drop
Array = npt.NDArray[Any]
Embed = Callable[[Any], Any]


class Objective(Protocol):
    """A criterion that can be asked at any epoch."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def data(self) -> Data:
        """What to train on."""

    def __call__(self, embed: Embed) -> float:
        """Returns the score of an encoder, which `embed` applies to a graph; higher is better."""


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

    The probe is asked for test scores of the validation nodes once more: no test node takes part.
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
        known, seen = z[self.train], z[self.val]
        return multilabel_probe(
            (known, seen, seen),
            (self.y_train, self.y_val, self.y_val),
            steps=self.steps,
            device=self.device,
        ).val_micro_f1


@dataclass(frozen=True, eq=False)
class ClusterStability:
    """Whether clusters of the embeddings are the same in two damaged versions of the graph.

    It needs no label. What a class is must outlast missing links and features; where embeddings
    tell single nodes apart rather than kinds of nodes, or follow accidents of the input, clusters
    do not. `graphcl reproduce criterion` measures how well it ranks settings where there are
    labels: it tells bad settings from good ones, not the best from the good. (The recovery of
    held-out links, which it replaced, did not rank them at all.)
    """

    data: Graph
    versions: tuple[Graph, Graph]
    name: str = "cluster stability"

    @classmethod
    def of(cls, graph: Graph, *, seed: int) -> "ClusterStability":
        """Draws the two versions; the graph is checked first, if it is mapped from a store."""
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
    """Returns the objective that fits the data: labels where there are any.

    Args:
        data: a graph or a collection.
        unsupervised: use no label though there are some.
        seed: decides what the damaged versions lack.
        device: where a probe of several labels trains.
        probe_steps: its budget.

    Raises:
        GraphError: no labels, and several graphs.
    """
    if data.y is None or unsupervised:
        if isinstance(data, GraphCollection):
            raise GraphError(f"{data.name}: without labels, tuning takes one graph")
        return ClusterStability.of(data, seed=seed)
    if isinstance(data, Graph) and data.y.ndim == 1:
        return ValidationAccuracy.of(data)
    return ValidationF1.of(data, device=device, steps=probe_steps)


def unlabelled(data: Data) -> Any:
    """Returns the data without any label; masks stay, for training on training nodes alone."""
    if isinstance(data, GraphCollection):
        train, val, test = (
            tuple(map(unlabelled, part)) for part in (data.train, data.val, data.test)
        )
        return GraphCollection(train, val, test, name=data.name, note=data.note)
    kept = {name: value for name, value in vars(data).items() if name in Graph.__dataclass_fields__}
    return Graph(**kept | {"y": None})
