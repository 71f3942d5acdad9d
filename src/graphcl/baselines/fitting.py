"""What the trained baselines share: seeded draws, bounds of their fields, early stopping."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from graphcl.errors import TrainingError, require
from graphcl.kernels.csr import Features
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


def drop_features(x: Features, probability: float) -> Tensor:
    """Returns features with some of them 0, the others scaled up, dense.

    Zeros need no draw: of a bag of words a hundredth of the table is drawn for.
    """
    if isinstance(x, Tensor):
        return dropout(x, probability)
    return x.with_values(dropout(x.values, probability)).to_dense()


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
