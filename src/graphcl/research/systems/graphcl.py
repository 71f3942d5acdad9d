"""GraphCL itself as one of the systems, so that all are named, set, trained and scored alike."""

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from graphcl.estimator import GraphCL
from graphcl.graphs.collection import labelled_nodes
from graphcl.recipes import Recipe, load_recipe, recipe_for
from graphcl.recipes.recipe import recipe_keys
from graphcl.research.systems.system import Data, Method, OnEpoch, Rows, System, silent


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


SYSTEM = _Recipes("graphcl", "GraphCL", Trainer, weighted=True, typed=True)
