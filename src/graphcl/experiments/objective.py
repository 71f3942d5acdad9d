"""What tuning maximises: validation accuracy, or, without labels, the recovery of held-out links.

Test labels never get here: an objective takes the labels of training and validation nodes out of
the graph when it is built, and keeps nothing else of `y`.
"""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from graphcl.baselines.protocol import Data
from graphcl.collection import GraphCollection
from graphcl.errors import GraphError
from graphcl.evaluation.multilabel import multilabel_probe
from graphcl.evaluation.probe import node_split
from graphcl.evaluation.validation import link_auc, validation_accuracy
from graphcl.graph import Graph

HELD_OUT = 0.1  # share of links
Array = npt.NDArray[Any]


class Objective(Protocol):
    """A criterion that can be asked at any epoch."""

    @property
    def name(self) -> str:
        """What reports call it."""

    @property
    def data(self) -> Data:
        """What to train on and embed; it may lack links that the criterion holds out."""

    def __call__(self, z: Any) -> float:
        """Returns the score of embeddings of `data`; higher is better."""


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

    def __call__(self, z: Any) -> float:
        """Returns the accuracy as a fraction."""
        return validation_accuracy(z[self.nodes], self.y, self.train)


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

    def __call__(self, z: Any) -> float:
        """Returns micro-F1."""
        z = np.concatenate(z) if isinstance(z, list) else z
        known, seen = z[self.train], z[self.val]
        return multilabel_probe(
            (known, seen, seen),
            (self.y_train, self.y_val, self.y_val),
            steps=self.steps,
            device=self.device,
        ).val_micro_f1


@dataclass(frozen=True, eq=False)
class LinkRecovery:
    """How well embeddings of a graph that lacks a tenth of its links tell these from other pairs.

    It needs no label. It rewards what neighbours share, which is what classes follow in graphs
    whose neighbours tend to be alike; in others it is a poor guide.
    """

    data: Graph
    links: Array
    others: Array
    name: str = "held-out link AUC"

    @classmethod
    def of(cls, graph: Graph, *, seed: int) -> "LinkRecovery":
        """Holds links out and draws as many pairs that are no links."""
        both = graph.edge_index()
        once = both[0] < both[1]
        edges = both[:, once]
        count = round(HELD_OUT * edges.shape[1])
        if count < 1:
            raise GraphError(f"{graph.name}: too few links to hold some out; tuning needs labels")
        random = np.random.default_rng(seed)
        order = random.permutation(edges.shape[1])
        weight = graph.edge_weight
        kept = Graph.from_edge_index(
            edges[:, order[count:]],
            np.zeros((graph.num_nodes, 1), dtype=np.float32),
            edge_weight=None if weight is None else weight[once][order[count:]],
            name=graph.name,
        )
        # The features as they are, whatever their kind: they were checked when the graph was built.
        return cls(
            replace(kept, x=graph.x), edges[:, order[:count]], _non_links(graph, count, random)
        )

    def __call__(self, z: Any) -> float:
        """Returns the area under the ROC curve."""
        return link_auc(z, self.links, self.others)


def build_objective(
    data: Data, *, unsupervised: bool, seed: int, device: torch.device, probe_steps: int
) -> Objective:
    """Returns the objective that fits the data: labels where there are any.

    Args:
        data: a graph or a collection.
        unsupervised: use no label though there are some.
        seed: decides which links are held out.
        device: where a probe of several labels trains.
        probe_steps: its budget.

    Raises:
        GraphError: no labels, and several graphs.
    """
    if data.y is None or unsupervised:
        if isinstance(data, GraphCollection):
            raise GraphError(f"{data.name}: without labels, tuning takes one graph")
        return LinkRecovery.of(data, seed=seed)
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


def _non_links(graph: Graph, count: int, random: np.random.Generator) -> Array:
    drawn = random.integers(0, graph.num_nodes, (2, 4 * count + 64))
    both = graph.edge_index()
    linked = np.unique(both[0] * graph.num_nodes + both[1])
    key = drawn[0] * graph.num_nodes + drawn[1]
    free = (drawn[0] != drawn[1]) & ~np.isin(key, linked)
    return drawn[:, free][:, :count]
