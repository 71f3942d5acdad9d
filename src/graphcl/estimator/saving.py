"""The estimator as a run directory, written and read."""

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from graphcl.encoders import EncoderFactory
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.transformer import SklearnTransformer
from graphcl.estimator.typed import as_typed
from graphcl.graphs.collection import as_graphs
from graphcl.losses import Loss
from graphcl.runs import files as runs
from graphcl.runs.nodes import describe_nodes, write_nodes
from graphcl.runs.typed import write_types
from graphcl.runs.versions import current_run
from graphcl.views import Perturbation


class Saved(SklearnTransformer):
    """The part of the estimator that saves and loads."""

    def save(self, path: str | Path, *, graph: Any = None, overwrite: bool = False) -> None:
        """Writes a run directory that `load` reads back; it appears whole or not at all.

        Args:
            path: the directory.
            graph: a graph, or several, or a typed one. Its embeddings and the names of its nodes
                are kept in the run, as `graphcl train` does, for `graphcl report` and
                `graphcl neighbors`.
            overwrite: replace a run that is there. Anything else that is there is never touched.
        """
        self._require_fitted("save")
        typed = None if graph is None else as_typed(graph)
        given = None if graph is None or typed is not None else as_graphs(graph)
        z: Any = None if graph is None else self.transform(typed or given)
        with runs.new_run(Path(path), overwrite=overwrite) as folder:
            self.write_to(folder, runs.Origin())
            if typed is not None:
                write_types(folder, typed, z)
            if given is not None:
                np.save(folder / runs.EMBEDDINGS, np.concatenate(z) if isinstance(z, list) else z)
                write_nodes(folder, describe_nodes(given))

    def write_to(self, folder: Path, origin: runs.Origin) -> None:
        """Writes configuration, weights and metrics into an existing folder."""
        self._require_fitted("save").write(folder, origin)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        encoder: EncoderFactory | torch.nn.Module | None = None,
        perturbation: Perturbation | None = None,
        loss: Loss | None = None,
    ) -> Self:
        """Returns the fitted estimator of a run directory, in its current version.

        A run never says what code to execute. Where its encoder is of the caller's own, pass the
        same class or module here, or register it first. Its own perturbation and loss are needed
        to train again, not to embed.

        Args:
            path: the run.
            device: as for the estimator.
            encoder: what the run was trained with, where that was an object.
            perturbation: likewise.
            loss: likewise.

        Raises:
            RunError: the directory is missing, or a file in it is damaged.
            ParameterError: the run's encoder is not registered, or another one was passed.
        """
        folder = current_run(Path(path))
        fitted = Fitted.read(
            folder, own_encoder=encoder, own_perturbation=perturbation, own_loss=loss
        )
        own: Any = {"encoder": encoder, "perturbation": perturbation, "loss": loss}
        model = cls(fitted.parts.recipe, seed=fitted.seed, device=device, **own)
        model._fitted = fitted
        return model
