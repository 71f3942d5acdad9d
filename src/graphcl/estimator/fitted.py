"""What a training leaves in an estimator, in memory and in a run directory."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from graphcl.errors import RunError
from graphcl.estimator.alignment import Alignment
from graphcl.estimator.parts import Parts
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import LIMIT, ColumnScaling, Scaling
from graphcl.recipes import Recipe
from graphcl.runs import files as runs
from graphcl.runs.versions import current_run
from graphcl.training import EpochMetrics
from graphcl.training.loop import metrics_of
from graphcl.training.modes import Mode

if TYPE_CHECKING:  # they know what makes them, which takes a while to import
    from graphcl.estimator.choice import Choice
    from graphcl.estimator.health import Health


@dataclass
class Fitted:
    """What a training leaves in an estimator, replaced as one: there is one training or another.

    Attributes:
        parts: the complete recipe that was trained, and the caller's own parts.
        encoder: the trained encoder.
        num_features: the width of the features it takes.
        seed: the seed that it was trained with.
        history: one `EpochMetrics` per epoch.
        seconds: how long training took.
        scaling: how features are scaled: the recipe's word, or what ``auto`` found.
        mode: whether the (first) graph was trained whole or sampled, and why; None after `load`.
        health: how the training went; None after `load` and after an interrupt.
        choice: what was tried and picked; None unless the recipe was ``auto``, and after `load`.
        alignment: what turns embeddings to the space of an earlier training; mostly None.
    """

    parts: Parts
    encoder: torch.nn.Module
    num_features: int
    seed: int
    history: list[EpochMetrics]
    scaling: Scaling
    seconds: float = 0.0
    mode: Mode | None = None
    health: "Health | None" = None
    choice: "Choice | None" = None
    alignment: Alignment | None = None

    def write(self, folder: Path, origin: runs.Origin) -> None:
        """Writes configuration, weights and metrics into a folder that is not yet a run."""
        config = runs.RunConfig(
            asdict(self.parts.recipe),
            seed=self.seed,
            num_features=self.num_features,
            origin=origin,
        )
        runs.write_config(folder, config)
        runs.write_weights(folder / runs.MODEL, self.encoder.state_dict())
        if isinstance(self.scaling, ColumnScaling):
            runs.write_weights(folder / runs.SCALING, self.scaling.tensors())
        if self.alignment is not None:
            runs.write_weights(folder / runs.ALIGNMENT, self.alignment.tensors())
        if self.choice is not None:
            runs.write_choice(folder, self.choice.to_json())
        lines = [json.dumps(asdict(metrics), allow_nan=False) for metrics in self.history]
        (folder / runs.METRICS).write_text("".join(f"{line}\n" for line in lines))

    @classmethod
    def read(cls, folder: Path, **own: Any) -> Self:
        """Reads the current version of a run; `own` are the caller's parts, as `Parts` takes them.

        Raises:
            RunError: the directory is missing, or a file in it is damaged.
            ParameterError: the run's encoder is not registered, or another one was passed.
        """
        folder = current_run(folder)
        where = folder / runs.CONFIG
        config = runs.read_config(folder)
        if (folder / runs.SCHEMA).exists():
            raise RunError(
                f"{folder}: is a run of a typed graph; only runs of plain graphs can do this"
            )
        parts = Parts(Recipe.from_mapping(config.recipe, where=str(where)), **own)
        seed, num_features = config.seed, config.num_features
        if seed is None or num_features is None:
            lacking = "seed" if seed is None else "num_features"
            raise RunError(f"{where}: [run] lacks {lacking!r}")
        _require_sizes(parts, num_features, folder)
        encoder = parts.new_encoder(num_features, seed=seed)
        try:
            encoder.load_state_dict(runs.read_weights(folder))
        except RuntimeError:
            raise RunError(f"{folder / runs.MODEL}: its weights do not fit {runs.CONFIG}") from None
        history, seconds = read_history(folder)
        scaling = _read_scaling(folder, parts.recipe.feature_scaling, num_features)
        fitted = cls(parts, encoder, num_features, seed, history, scaling, seconds)
        fitted.alignment = _read_alignment(folder)
        return fitted


# The estimator's attributes that end in an underscore.
FITTED: dict[str, Callable[[Fitted], Any]] = {
    "recipe_": lambda fitted: fitted.parts.recipe,
    "encoder_": lambda fitted: fitted.encoder,
    "num_features_": lambda fitted: fitted.num_features,
    "n_features_in_": lambda fitted: fitted.num_features,
    "history_": lambda fitted: fitted.history,
    "scaling_": lambda fitted: fitted.scaling,
    "mode_": lambda fitted: fitted.mode,
    "seconds_": lambda fitted: fitted.seconds,
    "seed_": lambda fitted: fitted.seed,
    "health_": lambda fitted: fitted.health,
    "choice_": lambda fitted: fitted.choice,
}


def read_history(folder: Path) -> tuple[list[EpochMetrics], float]:
    """Returns the epochs of a run, and how long they took.

    Raises:
        RunError: `metrics.jsonl` is damaged.
    """
    try:
        history = [metrics_of(line) for line in runs.read_metrics(folder)]
    except TypeError as error:
        raise RunError(f"{folder / runs.METRICS}: damaged ({error})") from None
    return history, history[-1].seconds if history else 0.0


def _read_scaling(folder: Path, feature_scaling: str, num_features: int) -> Scaling:
    if feature_scaling != "auto":
        return feature_scaling
    try:
        return ColumnScaling.from_tensors(runs.read_scaling(folder), num_features)
    except RunError as error:
        where = folder / runs.SCALING
        named = str(error) if str(where) in str(error) else f"{where}: damaged ({error})"
        raise RunError(named) from None


def _read_alignment(folder: Path) -> Alignment | None:
    tensors = runs.read_alignment(folder)
    try:
        return None if tensors is None else Alignment.from_tensors(tensors)
    except RunError as error:
        raise RunError(f"{folder / runs.ALIGNMENT}: damaged ({error})") from None


def say_clipped(scaling: ColumnScaling, graph: Graph) -> None:
    """Says on stderr how many values of a graph lie outside the range that training allows."""
    count = scaling.clipped(graph)
    if count:
        far = f"{count:,} value{'' if count == 1 else 's'} more than {LIMIT:g} deviations"
        text = f"features: {far} from the training rows' mean, clipped"
        print(text, file=sys.stderr, flush=True)


def _require_sizes(parts: Parts, num_features: int, folder: Path) -> None:
    """Refuses sizes that need more weights than the run has, before room for them is made."""
    available = runs.weights_bytes(folder)
    try:
        shapes = parts.weightless_encoder(num_features).parameters() if num_features >= 1 else None
        fits = shapes is not None and 4 * sum(one.numel() for one in shapes) <= available
    except (RuntimeError, TypeError, OverflowError):  # sizes that no tensor can have
        fits = False
    if not fits:
        wrong = f"num_features = {num_features} and dim = {parts.recipe.dim}"
        raise RunError(f"{folder / runs.CONFIG}: {wrong} do not fit {runs.MODEL}")
