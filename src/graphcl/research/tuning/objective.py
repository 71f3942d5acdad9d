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

from graphcl.errors import GraphError
from graphcl.evaluation.criteria import (
    CLUSTERS,
    cluster_stability,
    nodes_to_choose_by,
    validation_score,
)
from graphcl.evaluation.multilabel import STEPS
from graphcl.evaluation.splits import METRICS, metric_of
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.damage import missing_features, missing_links
from graphcl.graphs.graph import Graph
from graphcl.research.systems.protocol import Data

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
class ValidationScore:
    """The probe's score on validation nodes, by which `compare` ranks too; see `metric_of`.

    With several labels per node, the probe is trained on `device` for `steps` steps.
    """

    data: Data
    nodes: Array
    y: Array
    train: Array
    device: torch.device | str
    steps: int

    @property
    def name(self) -> str:
        """``validation accuracy``, ``validation ROC-AUC`` or ``validation mean label AUC``."""
        return f"validation {METRICS[metric_of(self.y)]}"

    @classmethod
    def of(cls, data: Data, *, device: torch.device | str, steps: int = STEPS) -> "ValidationScore":
        """Takes the labels of training and validation nodes out of the data."""
        nodes, y, train = nodes_to_choose_by(data)
        return cls(unlabelled(data), nodes, y, train, device, steps)

    def __call__(self, embed: Embed) -> float:
        """Returns the score as a fraction."""
        z = embed(self.data)
        z = (np.concatenate(z) if isinstance(z, list) else z)[self.nodes]
        return validation_score(z, self.y, self.train, steps=self.steps, device=self.device)


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
    return ValidationScore.of(data, device=device, steps=probe_steps)


def unlabelled(data: Data) -> Any:
    """Returns the data without labels; masks stay, because inductive training needs them."""
    if isinstance(data, GraphCollection):
        train, val, test = (
            tuple(map(unlabelled, part)) for part in (data.train, data.val, data.test)
        )
        return GraphCollection(train, val, test, name=data.name, note=data.note)
    kept = {name: value for name, value in vars(data).items() if name in Graph.__dataclass_fields__}
    return Graph(**kept | {"y": None})
