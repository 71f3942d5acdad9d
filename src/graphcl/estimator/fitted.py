"""What a training leaves in an estimator, in memory and in a run directory."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from graphcl.arrays import Floats, blocks
from graphcl.errors import GraphError, RunError
from graphcl.estimator.components import Components
from graphcl.files.arrays import check_tensors, read_tensors
from graphcl.graphs.filling import describe_filling
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import LIMIT, ColumnScaling, Scaling
from graphcl.graphs.schema import Schema
from graphcl.graphs.tensors import Prepared, prepare_like
from graphcl.kernels.features import UNIT
from graphcl.recipes import Recipe
from graphcl.runs import files as runs
from graphcl.runs.versions import current_run
from graphcl.training import EpochMetrics
from graphcl.training.loop import metrics_of
from graphcl.training.modes import Mode

if TYPE_CHECKING:  # they know what makes them, which takes a while to import
    from graphcl.estimator.fitting import Health


BLOCK = 4096  # rows that are turned at a time, a multiple of UNIT


@dataclass(frozen=True, eq=False)
class Alignment:
    r"""The turn and the move that are applied to every embedding of a model that was trained on.

    Training turns embeddings as a whole: distances mean the same, coordinates do not. A classifier
    that was fitted to the old coordinates would fail on the new ones. So the new space is turned
    back by the orthogonal matrix that fits nodes which did not change (orthogonal Procrustes), and
    moved to their old mean:

    .. math::
        z' = z R + b, \qquad
        R = \arg\min_{R^T R = I} \sum_u \| (z_u - \bar z) R - (o_u - \bar o) \|^2

    :math:`o_u` is the old embedding of node u. R is :math:`U V^T`, where :math:`U S V^T` is the
    singular value decomposition of :math:`\sum_u (z_u - \bar z)^T (o_u - \bar o)`. Distances
    between nodes stay as the model has them.

    Attributes:
        rotation: R, orthogonal, ``[dim, dim]`` float32.
        shift: b, ``[dim]``.
    """

    rotation: Tensor
    shift: Tensor

    def apply(self, z: Floats) -> Floats:
        """Returns embeddings turned; an array that can be written to is changed in place.

        The bits of a row do not depend on the other rows: products have a multiple of `UNIT` rows.
        """
        out = z if z.flags.writeable else np.array(z)
        for some in blocks(len(out), BLOCK):
            rows = torch.from_numpy(out[some])
            padded = rows.new_zeros(len(rows) + -len(rows) % UNIT, rows.shape[1])
            padded[: len(rows)] = rows
            rows.copy_((padded @ self.rotation + self.shift)[: len(rows)])
        return out

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that a run keeps."""
        return {"rotation": self.rotation, "shift": self.shift}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Reads what `tensors` returned; it may be forged.

        Raises:
            RunError: a tensor is missing, has another shape, or the turn is none.
        """
        rotation, shift = (tensors.get(name) for name in ("rotation", "shift"))
        if rotation is None or shift is None:
            raise RunError("it lacks rotation or shift")
        width = len(shift) if shift.ndim == 1 else -1
        if rotation.shape != (width, width) or rotation.dtype != torch.float32:
            raise RunError(f"rotation {tuple(rotation.shape)}, shift {tuple(shift.shape)}")
        if shift.dtype != torch.float32 or not bool(torch.isfinite(shift).all()):
            raise RunError("shift holds a number that is not finite")
        off = (rotation.double() @ rotation.double().T - torch.eye(width)).abs().max()
        if not float(off) < 1e-3:
            raise RunError("rotation is not orthogonal")
        return cls(rotation, shift)


def align(new: Any, old: Any) -> Alignment:
    """Returns what brings new embeddings of some nodes to their old ones.

    Args:
        new: ``[nodes, dim]``, as the model now embeds them; arrays may be mapped.
        old: the same nodes in the same order, in the space to keep.

    Raises:
        GraphError: there is no node, or the widths differ.
    """
    if not len(new) or new.shape != old.shape:
        raise GraphError(f"align: embeddings {new.shape} and {old.shape}; expected the same nodes")
    some, product = list(blocks(len(new), 16 * BLOCK)), np.zeros((new.shape[1], new.shape[1]))
    means = [
        sum(np.asarray(one[rows], np.float64).sum(axis=0) for rows in some) / len(new)
        for one in (new, old)
    ]
    for rows in some:
        first, second = (
            np.asarray(one[rows], np.float64) - mean
            for one, mean in zip((new, old), means, strict=True)
        )
        product += first.T @ second
    left, _, right = np.linalg.svd(product)
    rotation = left @ right
    shift = means[1] - means[0] @ rotation
    return Alignment(
        torch.from_numpy(rotation.astype(np.float32)), torch.from_numpy(shift.astype(np.float32))
    )


@dataclass
class Fitted:
    """What a training leaves in an estimator, replaced as one: there is one training or another.

    Attributes:
        components: the complete recipe that was trained, and the caller's own objects.
        encoder: the trained encoder.
        schema: the types and relations that the encoder is for.
        scaling: how the features of each type and relation are scaled.
        seed: the seed that it was trained with.
        history: one `EpochMetrics` per epoch.
        seconds: how long training took.
        mode: whether the (first) graph was trained whole or sampled, and why; None after `load`.
        health: how the training went; None after `load` and after an interrupt.
        alignment: what turns embeddings to the space of an earlier training; mostly None.
    """

    components: Components
    encoder: torch.nn.Module
    schema: Schema
    scaling: Scaling
    seed: int
    history: list[EpochMetrics]
    seconds: float = 0.0
    mode: Mode | None = None
    health: "Health | None" = None
    alignment: Alignment | None = None

    @property
    def num_features(self) -> int:
        """The width of the features it takes, of all types together."""
        return sum(self.schema.widths.values())

    def describe(self) -> list[str]:
        """Returns what a user is told of the graph: scaling, filled features, empty relations."""
        quiet = [":".join(one.key) for one in self.schema.relations if not one.num_edges]
        return [
            *self.scaling.describe(),
            *filter(None, [describe_filling(self.schema)]),
            *(f"relation {name} has no edges: nothing is learnt of it" for name in quiet),
        ]

    def prepare(self, graph: Graph) -> Prepared:
        """Returns a graph as the encoder takes it.

        Raises:
            GraphError: it has types, relations or features that the training had not.
        """
        return prepare_like(graph, self.schema, self.scaling)

    def write(self, folder: Path, origin: runs.Origin) -> None:
        """Writes configuration, weights and metrics into a folder that is not yet a run."""
        config = runs.RunConfig(
            asdict(self.components.recipe),
            seed=self.seed,
            num_features=self.num_features,
            origin=origin,
        )
        runs.write_config(folder, config)
        runs.write_weights(folder / runs.MODEL, self.encoder.state_dict())
        if not self.schema.is_plain:
            runs.write_object(folder / runs.SCHEMA, self.schema.to_json())
        if self.components.recipe.feature_scaling == "auto":
            runs.write_weights(folder / runs.SCALING, self.scaling.tensors())
        if self.alignment is not None:
            runs.write_weights(folder / runs.ALIGNMENT, self.alignment.tensors())
        lines = [json.dumps(asdict(metrics), allow_nan=False) for metrics in self.history]
        (folder / runs.METRICS).write_text("".join(f"{line}\n" for line in lines))

    @classmethod
    def read(cls, folder: Path, **own: Any) -> Self:
        """Reads the current version of a run; `own` are the caller's objects for `Components`.

        Raises:
            RunError: the directory is missing, or a file in it is damaged.
            ParameterError: the run's encoder is not registered, or another one was passed.
        """
        folder = current_run(folder)
        where = folder / runs.CONFIG
        config = runs.read_config(folder)
        components = Components(Recipe.from_mapping(config.recipe, where=str(where)), **own)
        seed, num_features = config.seed, config.num_features
        if seed is None or num_features is None:
            lacking = "seed" if seed is None else "num_features"
            raise RunError(f"{where}: [run] lacks {lacking!r}")
        said = runs.read_schema(folder)
        with _named(folder / runs.SCHEMA):
            schema = Schema.from_json(said) if said else Schema.plain(num_features)
        _require_sizes(components, schema, folder)
        encoder = components.new_encoder(schema, seed=seed)
        try:
            encoder.load_state_dict(read_tensors(runs.model_file(folder)))
        except RuntimeError:
            named = runs.CONFIG if schema.is_plain else runs.SCHEMA
            raise RunError(f"{folder / runs.MODEL}: its weights do not fit {named}") from None
        try:
            history = [metrics_of(line) for line in runs.read_metrics(folder)]
        except TypeError as error:
            raise RunError(f"{folder / runs.METRICS}: damaged ({error})") from None
        word, turned = components.recipe.feature_scaling, folder / runs.ALIGNMENT
        with _named(folder / runs.SCALING):
            kept = read_tensors(folder / runs.SCALING) if word == "auto" else {}
            scaling = Scaling.read(word, schema, kept)
        with _named(turned):
            alignment = Alignment.from_tensors(read_tensors(turned)) if turned.exists() else None
        seconds = history[-1].seconds if history else 0.0
        about: Any = {"seconds": seconds, "alignment": alignment}
        return cls(components, encoder, schema, scaling, seed, history, **about)


# The estimator's attributes that end in an underscore.
FITTED: dict[str, Callable[[Fitted], Any]] = {
    "recipe_": lambda fitted: fitted.components.recipe,
    "encoder_": lambda fitted: fitted.encoder,
    "num_features_": lambda fitted: fitted.num_features,
    "n_features_in_": lambda fitted: fitted.num_features,
    "history_": lambda fitted: fitted.history,
    "scaling_": lambda fitted: fitted.scaling.table,
    "mode_": lambda fitted: fitted.mode,
    "seconds_": lambda fitted: fitted.seconds,
    "seed_": lambda fitted: fitted.seed,
    "health_": lambda fitted: fitted.health,
}


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Lets an error name the file of a run that is damaged."""
    try:
        yield
    except FileNotFoundError:
        raise RunError(f"{path}: missing; the run needs it") from None
    except RunError as error:
        named = str(error) if str(path) in str(error) else f"{path}: damaged ({error})"
        raise RunError(named) from None


def say_clipped(scaling: Scaling, graph: Graph) -> None:
    """Says on stderr how many values of a graph lie outside the range that training allows."""
    fitted = {name: one for name, one in scaling.nodes.items() if isinstance(one, ColumnScaling)}
    count = sum(fitted[name].clipped(one.x) for name, one in graph.nodes.items() if name in fitted)
    if count:
        far = f"{count:,} value{'' if count == 1 else 's'} more than {LIMIT:g} deviations"
        print(f"features: {far} from the training rows' mean, clipped", file=sys.stderr, flush=True)


def _require_sizes(components: Components, schema: Schema, folder: Path) -> None:
    """Refuses sizes that need more weights than the run has, before room for them is made."""
    available = check_tensors(runs.model_file(folder))
    try:
        empty = min(schema.widths.values()) < 1
        shapes = None if empty else components.weightless_encoder(schema).parameters()
        fits = shapes is not None and 4 * sum(one.numel() for one in shapes) <= available
    except (RuntimeError, TypeError, OverflowError):  # sizes that no tensor can have
        fits = False
    if fits:
        return
    if not schema.is_plain:
        raise RunError(f"{folder / runs.SCHEMA}: its sizes do not fit {runs.MODEL}")
    (width,) = schema.widths.values()
    wrong = f"num_features = {width} and dim = {components.recipe.dim}"
    raise RunError(f"{folder / runs.CONFIG}: {wrong} do not fit {runs.MODEL}")
