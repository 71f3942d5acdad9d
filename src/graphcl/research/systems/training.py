"""How systems are trained: checks of fields, seeds, losses, early stopping, loops of steps."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from graphcl.arrays import Integers
from graphcl.encoders.side_by_side import SideBySide
from graphcl.errors import TrainingError, require
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features, linear
from graphcl.kernels.recording import CudaGraphStep
from graphcl.research.systems.system import (
    Data,
    Labels,
    OnEpoch,
    Rows,
    require_one_graph,
    scaling_for,
    silent,
)
from graphcl.seeding import derive, generator
from graphcl.settings import check_setting

CONVOLUTIONS, RESIDUAL = "convolutions", "residual"  # encoders of the systems that compare views
_CHOICES = {
    "activation": ("relu", "prelu"),
    "aggregator": ("gcn", "mean", "lstm", "pool"),
    "encoder": (CONVOLUTIONS, RESIDUAL),
}
_RATES = ("edge_drop", "feature_drop", "replace_rate", "momentum", "warm_up")
CHECK_EVERY = 10  # epochs between two reads of a value on the device, each of which waits for it


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


def labelled_score(logits: Tensor, y: Tensor) -> float:
    """Returns the accuracy; with several labels per node, micro-F1 at a threshold of 0.5."""
    if y.ndim == 1:
        return float((logits.argmax(1) == y).float().mean())
    given = logits > 0  # a probability above 0.5
    hits = (given & (y > 0)).sum()
    return float(2 * hits / (given.sum() + (y > 0).sum()).clamp(min=1))


def predicted(logits: Tensor, *, several: bool) -> Labels:
    """Returns class numbers ``[nodes]``, or 0/1 labels ``[nodes, labels]``."""
    answer = (logits > 0).long() if several else logits.argmax(1)
    array: Labels = answer.cpu().numpy().astype(np.int64)
    return array


def require_finite(
    result: Tensor, owner: str, problem: str = "the result is not finite; lower the learning rate"
) -> None:
    """Checks that a training has not diverged; raises a `TrainingError` if it has."""
    if not bool(result.isfinite().all()):
        raise TrainingError(f"{owner}: {problem}")


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
    draws = torch.Generator(device)
    recorded = CudaGraphStep(lambda _: step(draws), draws) if device.type == "cuda" else None
    loss = torch.zeros(())
    try:
        for epoch in range(epochs):
            draws.manual_seed(derive(seed, owner, "views", epoch))
            before(epoch)
            loss = recorded(None) if recorded else step(draws)
            on_epoch(epoch + 1, epochs)
    finally:
        if recorded:
            recorded.close()
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
