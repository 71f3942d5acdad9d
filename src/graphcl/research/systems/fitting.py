"""Shared by the trained baselines: checks of fields, draws, losses, stopping, sparse products."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, dropout

from graphcl.errors import TrainingError, require
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.tensors import feature_tensor
from graphcl.graphs.validation import IntArray
from graphcl.kernels.adjacency import Adjacency, csr_matmul
from graphcl.kernels.buffers import borrow
from graphcl.kernels.features import Features
from graphcl.research.systems.protocol import Labels
from graphcl.seeding import derive, generator
from graphcl.settings import check_setting

ACTIVATIONS = ("relu", "prelu")
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


def check_fields(owner: str, **values: Any) -> None:
    """Checks hyperparameters; a name has the same bounds in every baseline."""
    for name, value in values.items():
        if name.endswith("dropout") or name.startswith(_RATES):
            require(0 <= value < 1, owner, name, "in [0, 1)", value)
        elif name == "mask_rate":
            require(0 < value < 1, owner, name, "in (0, 1)", value)
        elif name == "feature_scaling":
            check_setting(owner, name, value)
        elif name == "activation":
            require(value in ACTIVATIONS, owner, name, " or ".join(ACTIVATIONS), value)
        elif name == "weight_decay":
            require(0 <= value < float("inf"), owner, name, "0 or more", value)
        elif isinstance(value, float):
            require(0 < value < float("inf"), owner, name, "positive", value)
        else:
            require(value >= 1, owner, name, "at least 1", value)


def feature_dropout(x: Features, probability: float) -> Tensor:
    """Returns the features after dropout, dense.

    Sparse features need draws only for their non-zeros, about 1 % of a bag-of-words table.
    """
    if isinstance(x, Tensor):
        return dropout(x, probability)
    return x.with_values(dropout(x.values, probability)).to_dense()


def drop_values(h: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Returns `h` after dropout; `generator` must be on the device of `h`."""
    if rate == 0:
        return h
    keep = torch.rand(h.shape, generator=generator, device=h.device) >= rate
    return h * keep / (1 - rate)


def dense(x: Features) -> Tensor:
    """Returns features as a dense table."""
    return x if isinstance(x, Tensor) else x.to_dense()


def dense_csr(
    graph: Graph, device: torch.device, feature_scaling: Scaling
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns a graph on `device`: dense features, CSR row pointers and column indices."""
    x = feature_tensor(graph, device=device, feature_scaling=feature_scaling)
    return dense(x), borrow(graph.indptr).to(device), borrow(graph.indices).to(device)


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


def targets(y: IntArray, device: torch.device) -> Tensor:
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
    `update` keeps nothing more, so a late check of `stopped` does not change the result.
    """

    def __init__(self, module: nn.Module, *, patience: int) -> None:
        self._parameters = list(module.parameters())
        self._kept = [parameter.detach().clone() for parameter in self._parameters]
        self._patience = patience
        self._waited = torch.zeros((), device=self._parameters[0].device)

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


class Symmetric(NamedTuple):
    """A symmetric matrix as CSR: row pointers, columns, values.

    It equals its transpose, so the backward pass of a product is the same product.
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor

    @classmethod
    def normalised(cls, adjacency: Adjacency) -> "Symmetric":
        r"""Returns :math:`\tilde A = \check D^{-1/2} (A + I) \check D^{-1/2}`, as in a GCN."""
        scale, looped = adjacency.inverse_degree[:, 0].sqrt(), adjacency.looped
        values = adjacency.looped_weight * scale[looped.rows] * scale[looped.indices]
        return cls(looped.indptr, looped.indices, values)

    @classmethod
    def plain(cls, adjacency: Adjacency) -> "Symmetric":
        """Returns A itself."""
        return cls(adjacency.indptr, adjacency.indices, adjacency.weight)

    def __matmul__(self, h: Tensor) -> Tensor:
        """Returns the product with `h`, ``[num_nodes, d]``; differentiable in `h`."""
        return cast("Tensor", _SymmetricProduct.apply(h, self))  # type: ignore[no-untyped-call]


class _SymmetricProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, matrix: Symmetric) -> Tensor:
        ctx.matrix = matrix
        return csr_matmul(matrix.indptr, matrix.indices, matrix.values, h)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        matrix: Symmetric = ctx.matrix
        return csr_matmul(matrix.indptr, matrix.indices, matrix.values, grad), None
