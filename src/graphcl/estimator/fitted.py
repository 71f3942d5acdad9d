"""What a training leaves in an estimator, in memory and in a run directory."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from graphcl.errors import RunError
from graphcl.estimator.alignment import Alignment
from graphcl.estimator.parts import Parts
from graphcl.graphs.filling import describe_filling
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import LIMIT, ColumnScaling, Scaling
from graphcl.graphs.schema import Schema
from graphcl.graphs.typed_tensors import TypedScaling
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
        num_features: the width of the features it takes, of all types together.
        seed: the seed that it was trained with.
        history: one `EpochMetrics` per epoch.
        seconds: how long training took.
        scaling: how features are scaled: the recipe's word, or what ``auto`` found.
        mode: whether the (first) graph was trained whole or sampled, and why; None after `load`.
        health: how the training went; None after `load` and after an interrupt.
        choice: what was tried and picked; None unless the recipe was ``auto``, and after `load`.
        alignment: what turns embeddings to the space of an earlier training; mostly None.
        schema: the types and relations that the encoder is for; None for a plain graph.
        typed_scaling: how the features of each type and relation are scaled, if there are some.
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
    schema: Schema | None = None
    typed_scaling: TypedScaling = field(default_factory=TypedScaling)

    @classmethod
    def begun(
        cls,
        parts: Parts,
        encoder: torch.nn.Module,
        seed: int,
        mode: Mode,
        schema: Schema,
        scaling: TypedScaling,
    ) -> Self:
        """Returns what a training on a graph with types will leave."""
        features, word = sum(schema.widths.values()), parts.recipe.feature_scaling
        about: Any = {"mode": mode, "schema": schema, "typed_scaling": scaling}
        return cls(parts, encoder, features, seed, [], word, **about)

    def describe(self) -> list[str]:
        """Returns what a user is told of the graph: scaling, filled features, empty relations."""
        if self.schema is not None:
            quiet = [":".join(one.key) for one in self.schema.relations if not one.num_edges]
            return [
                *self.typed_scaling.describe(),
                *filter(None, [describe_filling(self.schema)]),
                *(f"relation {name} has no edges: nothing is learnt of it" for name in quiet),
            ]
        return [self.scaling.describe()] if isinstance(self.scaling, ColumnScaling) else []

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
        if self.schema is not None:
            runs.write_object(folder / runs.SCHEMA, self.schema.to_json())
        scaling = self.scaling if self.schema is None else self.typed_scaling
        if self.parts.recipe.feature_scaling == "auto" and not isinstance(scaling, str):
            runs.write_weights(folder / runs.SCALING, scaling.tensors())
        if self.alignment is not None:
            runs.write_weights(folder / runs.ALIGNMENT, self.alignment.tensors())
        if self.choice is not None:
            runs.write_object(folder / runs.CHOICE, self.choice.to_json())
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
        parts = Parts(Recipe.from_mapping(config.recipe, where=str(where)), **own)
        seed, num_features = config.seed, config.num_features
        if seed is None or num_features is None:
            lacking = "seed" if seed is None else "num_features"
            raise RunError(f"{where}: [run] lacks {lacking!r}")
        schema = _read_schema(folder)
        inputs = num_features if schema is None else schema
        _require_sizes(parts, inputs, folder)
        encoder = parts.new_encoder(inputs, seed=seed)
        try:
            encoder.load_state_dict(runs.read_weights(folder))
        except RuntimeError:
            named = runs.CONFIG if schema is None else runs.SCHEMA
            raise RunError(f"{folder / runs.MODEL}: its weights do not fit {named}") from None
        history, seconds = read_history(folder)
        word = parts.recipe.feature_scaling
        fitted = cls(parts, encoder, num_features, seed, history, word, seconds, schema=schema)
        fitted.alignment = _read_alignment(folder)
        if schema is not None:
            fitted.typed_scaling = TypedScaling(dict.fromkeys(schema.widths, word))
        if word == "auto":
            _read_scaling(folder, fitted)
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


def _read_schema(folder: Path) -> Schema | None:
    values = runs.read_schema(folder)
    try:
        return Schema.from_json(values) if values else None
    except RunError as error:
        raise RunError(f"{folder / runs.SCHEMA}: {error}") from None


def _read_scaling(folder: Path, fitted: Fitted) -> None:
    try:
        tensors = runs.read_scaling(folder)
        if fitted.schema is None:
            fitted.scaling = ColumnScaling.from_tensors(tensors, fitted.num_features)
        else:
            fitted.typed_scaling = TypedScaling.from_tensors(tensors, fitted.schema)
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


def _require_sizes(parts: Parts, inputs: int | Schema, folder: Path) -> None:
    """Refuses sizes that need more weights than the run has, before room for them is made."""
    available = runs.weights_bytes(folder)
    try:
        empty = isinstance(inputs, int) and inputs < 1
        shapes = None if empty else parts.weightless_encoder(inputs).parameters()
        fits = shapes is not None and 4 * sum(one.numel() for one in shapes) <= available
    except (RuntimeError, TypeError, OverflowError):  # sizes that no tensor can have
        fits = False
    if not fits:
        if not isinstance(inputs, int):
            raise RunError(f"{folder / runs.SCHEMA}: its sizes do not fit {runs.MODEL}")
        wrong = f"num_features = {inputs} and dim = {parts.recipe.dim}"
        raise RunError(f"{folder / runs.CONFIG}: {wrong} do not fit {runs.MODEL}")
