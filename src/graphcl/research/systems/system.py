"""What a system is, what it is given and returns, what it may see of labels, how it is trained.

GraphCL is one of them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Protocol, get_type_hints, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from graphcl.arrays import Integers
from graphcl.encoders.side_by_side import SideBySide
from graphcl.errors import (
    GraphError,
    ParameterError,
    TrainingError,
    check_keys,
    demand,
    require,
    typed,
)
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
from graphcl.graphs.tensors import graph_tensors, prepare
from graphcl.graphs.validation import is_labelled
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features, linear
from graphcl.kernels.recording import CudaGraphStep
from graphcl.recipes import Recipe, load_recipe, recipe_for
from graphcl.recipes.recipe import recipe_keys
from graphcl.seeding import derive, generator
from graphcl.settings import check_setting

Data = Graph | GraphCollection
Rows = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
OnEpoch = Callable[[int, int], None]  # epochs done, total number of epochs

CONVOLUTIONS, RESIDUAL = "convolutions", "residual"  # encoders of the systems that compare views
_CHOICES = {
    "activation": ("relu", "prelu"),
    "aggregator": ("gcn", "mean", "lstm", "pool"),
    "encoder": (CONVOLUTIONS, RESIDUAL),
}
_RATES = ("edge_drop", "feature_drop", "replace_rate", "momentum", "warm_up")
CHECK_EVERY = 10  # epochs between two reads of a value on the device, each of which waits for it


def silent(done: int, total: int) -> None:
    """Reports nothing."""


@runtime_checkable
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


@runtime_checkable
class Supervised(Protocol):
    """A system that is trained on the training labels and predicts the labels of every node.

    An implementation is a frozen dataclass whose fields are its hyperparameters. It reads training
    labels to learn and validation labels to choose when to stop, but never test labels.
    """

    def fit_predict(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Labels:
        """Returns classes ``[num_nodes]``; with several labels per node ``[num_nodes, labels]``."""


@runtime_checkable
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


def require_one_graph(data: Data, owner: str) -> Graph:
    """Returns `data`, which must be one graph; `owner` names the system that needs one."""
    if isinstance(data, GraphCollection):
        raise GraphError(f"{owner}: takes one graph; {data.name} has {len(data.graphs)}")
    return data


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
        demand(
            graph.y is None or graph.y.ndim == 1,
            f"{owner}: takes one class per node; {graph.name} has several labels",
        )
        return cls.of(graph, inductive=False, owner=owner, validates=validates)

    @classmethod
    def of(cls, data: Data, *, inductive: bool, owner: str, validates: bool = True) -> "Labelled":
        """Finds the labelled nodes in `data`; a system that `validates` needs some to do it."""
        if isinstance(data, GraphCollection):
            count, val_count, _ = data.split_nodes
            train, val = np.arange(count), np.arange(count, count + val_count)
            graphs = (*data.train, *data.val)
            labels = [graph.y for graph in graphs if graph.y is not None]
            demand(len(labels) == len(graphs), f"{owner}: learns from labels; {data.name} has none")
            y, positions = np.concatenate(labels), train
        else:
            demand(data.y is not None, f"{owner}: learns from labels; {data.name} has none")
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


@contextmanager
def seeded(seed: int, name: str, device: torch.device) -> Iterator[None]:
    """Seeds PyTorch's global random streams inside the block and restores them after it.

    The layers of PyTorch Geometric draw their weights and dropout only from these streams.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, name))
        yield


class Checked:
    """A system whose fields are checked as it is built; errors call it `owner`.

    A name has the same bounds in every system.
    """

    owner: ClassVar[str]

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in _CHOICES:
                known = _CHOICES[name]
                require(value in known, self.owner, name, " or ".join(known), value)
            elif name in ("feature_scaling", "weight_decay"):
                check_setting(self.owner, name, value)
            elif name == "mask_rate":
                require(0 < value < 1, self.owner, name, "in (0, 1)", value)
            elif name.endswith("dropout") or name.startswith(_RATES):
                require(0 <= value < 1, self.owner, name, "in [0, 1)", value)
            elif isinstance(value, float):
                require(0 < value < math.inf, self.owner, name, "positive", value)
            elif not isinstance(value, bool | str):
                require(value >= 1, self.owner, name, "at least 1", value)


def batches(
    count: int, size: int, *, seed: int, epoch: int, device: torch.device
) -> tuple[Tensor, ...]:
    """Returns the numbers below `count` in an epoch's random order, at most `size` at a time."""
    order = torch.randperm(count, generator=generator(seed, "batches", epoch))
    return order.to(device).tensor_split(-(-count // size))


def descend(optimiser: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """Takes one step along the gradient of `loss` and returns the loss without the gradient."""
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    optimiser.zero_grad()  # now: the next forward pass needs the memory of these gradients
    return loss.detach()


def cosine_decay(done: float) -> float:
    """Returns the factor of a rate that falls from 1 to 0 along a cosine; `done` is in [0, 1]."""
    return (1 + math.cos(math.pi * done)) / 2


def targets(y: Integers, device: torch.device) -> Tensor:
    """Returns class numbers as int64, or several labels per node as float32."""
    tensor = torch.tensor(y, device=device)
    return tensor.float() if tensor.ndim == 2 else tensor.long()


def supervised_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Returns the cross-entropy; with several labels per node, binary, over all (node, label)."""
    if y.ndim == 2:
        return binary_cross_entropy_with_logits(logits, y)
    return cross_entropy(logits, y)


def predicted(logits: Tensor, *, several: bool) -> Labels:
    """Returns class numbers ``[nodes]``, or 0/1 labels ``[nodes, labels]``."""
    answer = (logits > 0).long() if several else logits.argmax(1)
    return np.asarray(answer.cpu(), np.int64)


def require_finite(
    result: Tensor, owner: str, problem: str = "the result is not finite; lower the learning rate"
) -> None:
    """Checks that a training has not diverged; raises a `TrainingError` if it has."""
    demand(bool(result.isfinite().all()), f"{owner}: {problem}", TrainingError)


class EarlyStopping:
    """Keeps the weights of the best epoch and counts the epochs since the last improvement.

    Its state is in tensors on the device, so `update` never waits. Once patience has run out,
    `update` keeps nothing more, so a late check of `stopped` does not change the result. `lowest`
    is for the lowest loss so far.
    """

    def __init__(self, module: nn.Module, *, patience: int) -> None:
        self._parameters = list(module.parameters())
        self._kept = [parameter.detach().clone() for parameter in self._parameters]
        self._patience = patience
        self._waited = torch.zeros((), device=self._parameters[0].device)
        self.lowest = self._waited.new_tensor(torch.inf)

    @torch.no_grad()
    def update(self, *, keep: Tensor, improved: Tensor) -> None:
        """Records an epoch: whether to keep the current weights, whether to restart the count."""
        running = self._waited < self._patience
        keep = keep & running
        for kept, parameter in zip(self._kept, self._parameters, strict=True):
            torch.where(keep, parameter, kept, out=kept)  # an `if` would wait for the device
        self._waited = torch.where(running & improved, 0, self._waited + 1)

    def stopped(self, epoch: int) -> bool:
        """Whether patience has run out; checked only every `CHECK_EVERY` epochs."""
        return epoch % CHECK_EVERY == 0 and bool(self._waited >= self._patience)

    @torch.no_grad()
    def restore(self) -> None:
        """Restores the kept weights."""
        for kept, parameter in zip(self._kept, self._parameters, strict=True):
            parameter.copy_(kept)


def repeat_step(
    step: Callable[[torch.Generator], Tensor],
    *,
    epochs: int,
    seed: int,
    owner: str,
    device: torch.device,
    before: Callable[[int], None] = lambda _: None,
    on_epoch: OnEpoch,
) -> None:
    """Calls `step` once per epoch; a GPU records it after the first few and replays the recording.

    A recorded step takes a tenth of the time on a small graph. It must do the same work in every
    call, draw only from the generator it is given, and never wait for the device.

    Args:
        step: does one training step with the draws of a generator and returns the loss.
        epochs: how often.
        seed: with the epoch's number, it decides the draws of a step.
        owner: the system's name in errors.
        device: where the step runs.
        before: called with the number of the epoch, from 0; may set learning rates.
        on_epoch: called with the epochs done and their number.

    Raises:
        TrainingError: the loss is no longer finite.
    """
    draws, on_gpu = torch.Generator(device), device.type == "cuda"
    recording = closing(CudaGraphStep(lambda _: step(draws), draws)) if on_gpu else nullcontext()
    loss = torch.zeros(())
    with recording as recorded:
        for epoch in range(epochs):
            draws.manual_seed(derive(seed, owner, "views", epoch))
            before(epoch)
            loss = recorded(None) if recorded else step(draws)
            on_epoch(epoch + 1, epochs)
    require_finite(loss, owner)


class Training(NamedTuple):
    """A training that has been set up.

    Attributes:
        step: does one step with the draws of a generator and returns the loss; see `repeat_step`.
        encode: returns the embeddings of all nodes.
        before: called with the number of each epoch, from 0; may set learning rates.
    """

    step: Callable[[torch.Generator], Tensor]
    encode: Callable[[], Tensor]
    before: Callable[[int], None] = lambda _: None


def with_own_features(tables: Sequence[Features], h: Tensor, draw: torch.Generator) -> Tensor:
    """Returns own features and `h` side by side, as the recipe `default` puts them.

    That is ``[own features R | h]`` with a random matrix R, each part as wide as `h`, brought to
    mean 0 and to one size. `tables` are the features of the graphs, whose rows `h` has in order.
    """
    dim = h.shape[1]
    beside = SideBySide(tables[0].shape[1], dim, [dim], every_layer=False, generator=draw)
    beside = beside.to(h.device)
    own = torch.cat([linear(x, beside.projection) for x in tables])
    z = torch.cat([own, h], dim=1)
    beside.calibrate(z)
    return beside.finish(z, slice(0, beside.width))


@dataclass(frozen=True)
class SelfSupervised(Checked, ABC):
    """A system that trains on one whole graph, a step per epoch, and then embeds it.

    Attributes:
        epochs: steps, each over all nodes.
        feature_scaling: scaling of the features: ``none``, ``row``, ``unit`` or ``auto``.
        beside: the embedding holds own features too; see `with_own_features`.
    """

    epochs: int
    feature_scaling: str = "row"
    beside: bool = field(default=False, kw_only=True)

    @abstractmethod
    def start(self, x: Features, adjacency: Adjacency, draw: torch.Generator) -> Training:
        """Sets up a training on a graph; `draw`, on the CPU, draws the weights."""

    def embed(
        self, data: Data, *, seed: int, device: torch.device, on_epoch: OnEpoch = silent
    ) -> Rows:
        """Returns the embeddings, ``[num_nodes, dim]``."""
        graph = require_one_graph(data, self.owner)
        scaling = scaling_for(graph, self.feature_scaling)
        x, adjacency = graph_tensors(graph, device=device, feature_scaling=scaling)
        training = self.start(x, adjacency, generator(seed, self.owner, "weights"))
        repeat_step(
            training.step,
            epochs=self.epochs,
            seed=seed,
            owner=self.owner,
            device=device,
            before=training.before,
            on_epoch=on_epoch,
        )
        with torch.no_grad():
            h = training.encode()
            if self.beside:
                h = with_own_features([x], h, generator(seed, self.owner, "own"))
            return h.cpu().numpy()


def train_epochs(
    optimiser: torch.optim.Optimizer,
    losses: Callable[[int], Iterable[Tensor]],
    *,
    epochs: int,
    owner: str,
    on_epoch: OnEpoch,
    stopping: EarlyStopping | None = None,
) -> None:
    """Takes a step along each loss that `losses` yields for an epoch, from 0.

    With `stopping`, which `losses` updates, it ends when patience has run out and restores the
    weights that were kept.

    Raises:
        TrainingError: a loss is no longer finite; this is looked at every `CHECK_EVERY` epochs.
    """
    for epoch in range(1, epochs + 1):
        total = sum(descend(optimiser, loss) for loss in losses(epoch - 1))
        if epoch % CHECK_EVERY == 0 or epoch == epochs:
            problem = f"the loss is not finite in epoch {epoch}; lower the learning rate"
            require_finite(torch.as_tensor(total), owner, problem)
        on_epoch(epoch, epochs)
        if stopping is not None and stopping.stopped(epoch):
            break
    if stopping is not None:
        stopping.restore()


GRAPHCL = _Recipes("graphcl", "GraphCL", Trainer, weighted=True, typed=True)
