"""What the trained baselines share: bounds of fields, draws, losses, stopping, sparse products."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, dropout

from graphcl.baselines.protocol import Labels
from graphcl.errors import TrainingError, require
from graphcl.graphs.validation import IntArray
from graphcl.kernels.adjacency import Adjacency, csr_matmul
from graphcl.kernels.features import Features
from graphcl.seeding import derive

CHECK_EVERY = 10  # epochs between questions to the device, each of which waits for it


@contextmanager
def seeded(seed: int, name: str, device: torch.device) -> Iterator[None]:
    """Seeds PyTorch's own streams inside the block and puts them back after it.

    The layers of PyTorch Geometric draw weights and dropout from those alone.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, name))
        yield


def check_fields(owner: str, **values: Any) -> None:
    """Refuses a hyperparameter out of bounds, by the meaning its name has in every baseline.

    Raises:
        ParameterError: in the house's template.
    """
    for name, value in values.items():
        if name == "dropout":
            require(0 <= value < 1, owner, name, "in [0, 1)", value)
        elif name == "weight_decay":
            require(0 <= value < float("inf"), owner, name, "0 or more", value)
        elif isinstance(value, float):
            require(0 < value < float("inf"), owner, name, "positive", value)
        else:
            require(value >= 1, owner, name, "at least 1", value)


def feature_dropout(x: Features, probability: float) -> Tensor:
    """Returns features with some of them 0, the others scaled up, dense.

    Zeros need no draw: of a bag of words a hundredth of the table is drawn for.
    """
    if isinstance(x, Tensor):
        return dropout(x, probability)
    return x.with_values(dropout(x.values, probability)).to_dense()


def drop_values(h: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Returns `h` after dropout, drawn by `generator` on the device of `h`."""
    if rate == 0:
        return h
    keep = torch.rand(h.shape, generator=generator, device=h.device) >= rate
    return h * keep / (1 - rate)


def targets(y: IntArray, device: torch.device) -> Tensor:
    """Returns class numbers as int64, several labels per node as float32."""
    tensor = torch.tensor(y, device=device)
    return tensor.float() if tensor.ndim == 2 else tensor.long()


def supervised_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Returns cross-entropy, or its mean over all pairs of node and label."""
    if y.ndim == 2:
        return binary_cross_entropy_with_logits(logits, y)
    return cross_entropy(logits, y)


def labelled_score(logits: Tensor, y: Tensor) -> float:
    """Returns the accuracy, or micro-F1 where a label is given above probability 0.5."""
    if y.ndim == 1:
        return float((logits.argmax(1) == y).float().mean())
    given = logits > 0
    hits = (given & (y > 0)).sum()
    return float(2 * hits / (given.sum() + (y > 0).sum()).clamp(min=1))


def predicted(logits: Tensor, *, several: bool) -> Labels:
    """Returns class numbers ``[nodes]``, or 0/1 labels ``[nodes, labels]``."""
    answer = (logits > 0).long() if several else logits.argmax(1)
    array: Labels = answer.cpu().numpy().astype(np.int64)
    return array


def require_finite(result: Tensor, owner: str) -> None:
    """Refuses a training that has run away.

    Raises:
        TrainingError: a value of its result, or of its last loss, is not finite.
    """
    if not bool(result.isfinite().all()):
        raise TrainingError(f"{owner}: the result is not finite; lower the learning rate")


class EarlyStopping:
    """Keeps the weights of the best epoch and counts epochs since anything improved.

    Everything is a tensor on the device: `update` never waits. Once patience has run out, nothing
    is kept any more, so it does not matter to the result how often `stopped` is asked.

    Args:
        module: whose parameters are kept.
        patience: epochs without improvement after which to stop.
    """

    def __init__(self, module: nn.Module, *, patience: int) -> None:
        self._parameters = list(module.parameters())
        self._kept = [parameter.detach().clone() for parameter in self._parameters]
        self._patience = patience
        self._waited = torch.zeros((), device=self._parameters[0].device)

    @torch.no_grad()
    def update(self, *, keep: Tensor, improved: Tensor) -> None:
        """Notes an epoch.

        Args:
            keep: a truth value on the device: keep the weights as they are now.
            improved: likewise: start counting anew.
        """
        running = self._waited < self._patience
        keep = keep & running
        for kept, parameter in zip(self._kept, self._parameters, strict=True):
            torch.where(keep, parameter, kept, out=kept)
        self._waited = torch.where(running & improved, 0, self._waited + 1)

    def stopped(self, epoch: int) -> bool:
        """Whether patience has run out; the device is asked only every so many epochs."""
        return epoch % CHECK_EVERY == 0 and bool(self._waited >= self._patience)

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the kept weights back."""
        for kept, parameter in zip(self._kept, self._parameters, strict=True):
            parameter.copy_(kept)


class Symmetric(NamedTuple):
    """A symmetric matrix as CSR: row pointers, columns, values.

    The backward pass of a product with it is the same product.
    """

    indptr: Tensor
    indices: Tensor
    values: Tensor

    @classmethod
    def normalised(cls, adjacency: Adjacency) -> "Symmetric":
        r"""Returns :math:`\tilde A = \check D^{-1/2} (A + I) \check D^{-1/2}`, a GCN's."""
        scale, looped = adjacency.inverse_degree[:, 0].sqrt(), adjacency.looped
        values = adjacency.looped_weight * scale[looped.rows] * scale[looped.indices]
        return cls(looped.indptr, looped.indices, values)

    @classmethod
    def plain(cls, adjacency: Adjacency) -> "Symmetric":
        """Returns A itself."""
        return cls(adjacency.indptr, adjacency.indices, adjacency.weight)

    def __matmul__(self, h: Tensor) -> Tensor:
        """Returns the product with ``[num_nodes, d]``, differentiable in it."""
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
