"""The interface of a baseline: a protocol for unsupervised systems, one for supervised ones."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Protocol, TypeGuard, get_type_hints

import numpy as np
import numpy.typing as npt
import torch

from graphcl.errors import ParameterError, suggestion, typed
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph

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


Method = Unsupervised | Supervised


@dataclass(frozen=True)
class Baseline:
    """One system of the paper's tables as the command line and the trials see it.

    Attributes:
        name: its name for ``--method``, such as ``dgi``.
        title: its name in tables, such as ``DGI``.
        build: its dataclass.
        settings: per dataset, the fields that differ from the dataclass's defaults.
        paper: the paper it is from.
        deterministic: whether every seed gives the same result, so that one run is enough.
        weighted: whether it uses edge weights.
    """

    name: str
    title: str
    build: Callable[..., Method]
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    paper: str = ""
    deterministic: bool = False
    weighted: bool = False

    def method(self, dataset: str, **changed: Any) -> Method:
        """Returns the system with its settings for `dataset`, updated with `changed`.

        Args:
            dataset: a dataset's name; one without settings gets the dataclass's defaults.
            **changed: fields by name; text is read as the field's type.

        Raises:
            ParameterError: an unknown field, or a value of the wrong type or out of bounds.
        """
        given = {key: self._typed(key, value) for key, value in changed.items()}
        return self.build(**(self.settings.get(dataset, {}) | given))

    def _typed(self, key: str, value: Any) -> Any:
        described: Any = self.build.func if isinstance(self.build, partial) else self.build
        kinds = get_type_hints(described)
        known = [one.name for one in fields(described)]
        if key not in known:
            listed = f"; known: {', '.join(known)}" if known else "; it has none"
            near = suggestion(key, known) or listed
            raise ParameterError(f"{self.name}: unknown field {key!r}{near}")
        return typed(value, kinds[key], owner=self.name, key=key, texts=True)


def is_unsupervised(method: Method) -> TypeGuard[Unsupervised]:
    """Whether a system returns embeddings rather than predictions."""
    return hasattr(method, "embed")
