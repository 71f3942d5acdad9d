"""What a system is, what it is given and returns, and what it may see of labels; and GraphCL."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol, TypeGuard, get_type_hints

import numpy as np
import numpy.typing as npt
import torch

from graphcl.arrays import Integers
from graphcl.errors import GraphError, ParameterError, check_keys, typed
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.splits import Learner
from graphcl.graphs.collection import (
    GraphCollection,
    disjoint_union,
    labelled_nodes,
    training_subgraph,
)
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import NODE
from graphcl.graphs.scaling import TableScaling
from graphcl.graphs.tensors import prepare
from graphcl.graphs.validation import is_labelled
from graphcl.recipes import Recipe, load_recipe, recipe_for
from graphcl.recipes.recipe import recipe_keys

Data = Graph | GraphCollection
Rows = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
OnEpoch = Callable[[int, int], None]  # epochs done, total number of epochs


def silent(done: int, total: int) -> None:
    """Reports nothing."""


class Unsupervised(Protocol):
    """A system that turns a graph into embeddings; the probe scores them as it scores ours.

    An implementation is a frozen dataclass whose fields are its hyperparameters. It never reads
    labels. For a collection, it trains only on the training graphs; for one graph, with the field
    ``inductive=True``, only on the training nodes and the edges among them.
    """

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns embeddings, ``[num_nodes, dim]``; for a collection, in the order of `graphs`."""


class Supervised(Protocol):
    """A system that is trained on the training labels and predicts the labels of every node.

    An implementation is a frozen dataclass whose fields are its hyperparameters. It reads training
    labels to learn and validation labels to choose when to stop, but never test labels.
    """

    def fit_predict(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Labels:
        """Returns classes ``[num_nodes]``; with several labels per node ``[num_nodes, labels]``."""


class SplitBySplit(Supervised, Protocol):
    """A supervised system that a comparison scores in every split of a graph, not in one."""

    def learner(self, graph: Graph, *, seed: int) -> Learner:
        """Returns what learns from the train nodes of each split; labels are not read here."""


Method = Unsupervised | Supervised


@dataclass(frozen=True)
class System:
    """One system as the command line and the trials see it.

    Attributes:
        name: its name for ``--method``, such as ``dgi``.
        title: its name in tables, such as ``DGI``.
        build: its dataclass.
        settings: per dataset, the fields that differ from the dataclass's defaults.
        paper: the paper it is from.
        deterministic: whether every seed gives the same result, so that one run is enough.
        weighted: whether it uses edge weights.
        typed: whether it knows several types and relations; others get the graph flattened.
        label: its name in a comparison, such as ``graphcl:encoder=residual,layers=1``.
        changed: fields, as texts, that differ from what it is on every dataset.
    """

    name: str
    title: str
    build: Any
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    paper: str = ""
    deterministic: bool = False
    weighted: bool = False
    typed: bool = False
    label: str = ""
    changed: Mapping[str, Any] = field(default_factory=dict)

    def method(self, dataset: str, **changed: Any) -> Method:
        """Returns the system with its settings for `dataset`, updated with `changed`.

        Args:
            dataset: a dataset's name; one without settings gets the dataclass's defaults.
            **changed: fields by name; text is read as the field's type.

        Raises:
            ParameterError: an unknown field, or a value of the wrong type or out of bounds.
        """
        given, kinds = {**self.changed, **changed}, get_type_hints(self.build)
        check_keys(given, self.keys(), where=self.name, error=ParameterError, what="field")
        read = {
            key: typed(value, kinds[key], owner=self.name, key=key, texts=True)
            for key, value in given.items()
        }
        method: Method = self.build(**(self.settings.get(dataset, {}) | read))
        return method

    def keys(self) -> list[str]:
        """Returns the names of the settings that `method` can change."""
        return [one.name for one in fields(self.build)]


def is_unsupervised(method: Method) -> TypeGuard[Unsupervised]:
    """Whether a system returns embeddings rather than predictions."""
    return hasattr(method, "embed")


def is_split_by_split(method: Method) -> TypeGuard[SplitBySplit]:
    """Whether a system learns from labels in every split of a graph."""
    return hasattr(method, "learner")


def require_one_graph(data: Data, owner: str) -> Graph:
    """Returns `data`, which must be one graph; `owner` names the system that needs one."""
    if isinstance(data, GraphCollection):
        raise GraphError(f"{owner}: takes one graph; {data.name} has {len(data.graphs)}")
    return data


def only_training_graph(data: Data, owner: str) -> Graph:
    """Returns the graph to learn from: the one there is, or a collection's only training graph."""
    if isinstance(data, GraphCollection) and len(data.train) == 1:
        return data.train[0]
    return require_one_graph(data, owner)


def graphs_of(data: Data) -> tuple[Graph, ...]:
    """Returns the one graph, or all graphs of a collection."""
    return data.graphs if isinstance(data, GraphCollection) else (data,)


def scaling_for(data: Data, feature_scaling: str) -> TableScaling:
    """Returns how features are scaled; ``auto`` looks at the training graphs of a collection."""
    graphs = data.train if isinstance(data, GraphCollection) else (data,)
    return prepare(graphs, feature_scaling)[0].scaling.nodes[NODE]


def training_graph(data: Data, *, inductive: bool) -> Graph:
    """Returns the graph that training may see, without labels; a collection's are joined.

    With `inductive`, one graph keeps only its training nodes and the edges among them.
    """
    if isinstance(data, GraphCollection):
        return disjoint_union(data.train, data.name).replace(y=None)
    return training_subgraph(data) if inductive else data.replace(y=None)


def whole_graph(data: Data) -> Graph:
    """Returns all data as one graph; a collection is joined in the order of `graphs`."""
    if isinstance(data, GraphCollection):
        return disjoint_union(data.graphs, data.name)
    return data


@dataclass(frozen=True)
class Labelled:
    """The labels that a supervised system may read: no test label is among them.

    Attributes:
        graph: what training may see: `training_graph`, without labels.
        nodes: the labelled training nodes, as numbers of `graph`.
        y: their labels, ``[len(nodes)]`` or ``[len(nodes), labels]``.
        val: the labelled validation nodes, as numbers of `whole_graph`.
        val_y: their labels.
        num_outputs: number of classes, or of labels per node.
    """

    graph: Graph
    nodes: Integers
    y: Integers
    val: Integers
    val_y: Integers
    num_outputs: int

    @classmethod
    def one_class(cls, data: Data, owner: str, *, validates: bool) -> "Labelled":
        """Finds the labelled nodes of one graph, which has one class per node."""
        graph = require_one_graph(data, owner)
        if graph.y is not None and graph.y.ndim == 2:
            raise GraphError(f"{owner}: takes one class per node; {graph.name} has several labels")
        return cls.of(graph, inductive=False, owner=owner, validates=validates)

    @classmethod
    def of(cls, data: Data, *, inductive: bool, owner: str, validates: bool = True) -> "Labelled":
        """Finds the labelled nodes in `data`; a system that `validates` needs some to do it."""
        if isinstance(data, GraphCollection):
            count, val_count, _ = data.split_nodes
            train, val = np.arange(count), np.arange(count, count + val_count)
            graphs = (*data.train, *data.val)
            labels = [graph.y for graph in graphs if graph.y is not None]
            if len(labels) < len(graphs):
                raise GraphError(f"{owner}: learns from labels; {data.name} has none")
            y, positions = np.concatenate(labels), train
        else:
            if data.y is None:
                raise GraphError(f"{owner}: learns from labels; {data.name} has none")
            if data.train_mask is None or data.val_mask is None:
                lack = data.split_gap or "it has none"
                raise GraphError(f"{owner}: {data.name} needs train and validation masks; {lack}")
            train, val = np.flatnonzero(data.train_mask), np.flatnonzero(data.val_mask)
            y, positions = data.y, np.arange(len(train)) if inductive else train
        known = is_labelled(y)
        kept, val = known[train], val[known[val]]
        if not kept.any() or (validates and not len(val)):
            part = "validation" if kept.any() else "training"
            raise GraphError(f"{owner}: no {part} node of {data.name} has a label")
        return cls(
            graph=training_graph(data, inductive=inductive),
            nodes=positions[kept],
            y=y[train[kept]],
            val=val,
            val_y=y[val],
            num_outputs=data.num_classes,
        )


class Trainer:
    """A recipe that is trained and embeds.

    Attributes:
        recipe: all settings.
        costs: the recipe's hash, and of the last training that ended its loss and duration.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.costs: dict[str, Any] = {"recipe_hash": recipe.hash, "train_seconds": None}

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, dim]``; for a collection, in their order."""
        model = GraphCL(self.recipe, seed=seed, device=str(device), verbose=False)
        model.fit(data, on_epoch=lambda metrics: on_epoch(metrics.epoch, self.recipe.epochs))
        z: Any = model.transform(data)
        self.costs |= {"loss": model.history_[-1].loss, "train_seconds": model.seconds_}
        if isinstance(z, dict):  # of a graph with types, that of the nodes with labels
            return z[labelled_nodes(data).name]  # type: ignore[no-any-return]
        return np.concatenate(z) if isinstance(z, list) else z


class _Recipes(System):
    """The system whose settings are a recipe's keys."""

    def method(self, dataset: str, **changed: Any) -> Method:
        """Returns the dataset's recipe, or the default one, updated with `changed`."""
        return Trainer(load_recipe(recipe_for(dataset)).with_texts(**{**self.changed, **changed}))

    def keys(self) -> list[str]:
        """Returns the keys of a recipe."""
        return recipe_keys()


def settings_of(method: Method) -> dict[str, Any]:
    """Returns the settings of a system by name."""
    return asdict(method.recipe) if isinstance(method, Trainer) else dict(vars(method))


GRAPHCL = _Recipes("graphcl", "GraphCL", Trainer, weighted=True, typed=True)
