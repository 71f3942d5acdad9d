"""From a recipe to the parts of a training, and what a training leaves, in memory and in a run."""

import copy
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from graphcl.arrays import Floats, blocks
from graphcl.distributed import ALONE, beside, current_share, from_rank
from graphcl.encoders import EncoderFactory, build_encoder, layered
from graphcl.encoders.typed import TypedEncoder
from graphcl.errors import ParameterError, RunError, demand, require
from graphcl.files.arrays import check_tensors, read_tensors
from graphcl.graphs.collection import training_subgraph
from graphcl.graphs.filling import describe_filling
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Key
from graphcl.graphs.scaling import LIMIT, ColumnScaling, Scaling
from graphcl.graphs.schema import EDGES, Direction, Schema
from graphcl.graphs.tensors import Prepared, prepare, prepare_like
from graphcl.kernels.features import stable_product
from graphcl.losses import Loss
from graphcl.recipes import Recipe
from graphcl.recipes.recipe import parse_overrides
from graphcl.registry import ENCODERS, LOSSES, PERTURBATIONS, Registry, answerable
from graphcl.runs import files as runs
from graphcl.runs.versions import kept_place
from graphcl.seeding import generator
from graphcl.settings import ENCODER_OPTIONS
from graphcl.training import EpochMetrics, FullGraph, ManyGraphs, SampledGraph
from graphcl.training.full_graph import can_divide
from graphcl.training.loop import metrics_of
from graphcl.training.modes import (
    SAMPLED_BATCH_NODES,
    Footprint,
    Mode,
    check_memory,
    choose_mode,
)
from graphcl.training.sampled import fan_outs_of
from graphcl.views import Drop, Perturbation

OneGraph = FullGraph | SampledGraph
BLOCK = 4096  # rows that are turned at a time
ENCODER = "residual"  # the paper's encoder that a typed one extends


@dataclass(frozen=True)
class Components:
    """A complete recipe and the objects that stand behind its names.

    Attributes:
        recipe: names every part.
        own_encoder: a factory or a module of the caller's own; None: the registry knows the name.
        own_perturbation: likewise, a ready object.
        own_loss: likewise.
    """

    recipe: Recipe
    own_encoder: EncoderFactory | nn.Module | None = None
    own_perturbation: Perturbation | None = None
    own_loss: Loss | None = None

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        changed: Mapping[str, Any] | None = None,
        *,
        encoder: Any,
        perturbation: Any,
        loss: Any,
    ) -> Self:
        """Lays values and parts over a recipe: each a name, an object, or None for its own."""
        given = ((ENCODERS, encoder), (PERTURBATIONS, perturbation), (LOSSES, loss))
        names = {known.kind: known.name_of(part) for known, part in given if part is not None}
        objects = (part if not isinstance(part, str) else None for _, part in given)
        return cls(recipe.replace(**changed or {}, **names), *objects)

    def new_encoder(self, schema: Schema, *, seed: int) -> nn.Module:
        """Returns the encoder on the CPU: fresh weights, or a copy of the caller's module.

        An encoder of the caller's own is built for the number of features of a plain graph, and for
        the schema of any other one.

        Args:
            schema: what the graph is made of.
            seed: decides the weights.

        Raises:
            ParameterError: an encoder of the caller's own does not state its layers for each type.
        """
        options: Any = {
            "dim": self.recipe.dim,
            "layers": self.recipe.layers,
            "generator": generator(seed, "weights"),
            **{key: getattr(self.recipe, key) for key in ENCODER_OPTIONS},
        }
        if not schema.is_plain and self.own_encoder is None:
            return TypedEncoder(schema, **options)
        chosen: Any = ENCODERS.resolve(self.recipe.encoder, self.own_encoder)
        if isinstance(chosen, nn.Module):
            encoder: nn.Module = copy.deepcopy(chosen)
        else:
            build: Any = answerable("encoder", chosen, build_encoder)
            inputs = schema.types[0].num_features if schema.is_plain else schema
            encoder = build(chosen, inputs, **options)
        if not schema.is_plain:
            for number, level in enumerate(layered(encoder, "a graph with types").levels()):
                demand(
                    set(level) == set(schema.widths),
                    f"encoder: layer {number} is stated for the types {', '.join(level)}; the "
                    f"graph's are {', '.join(schema.widths)}",
                    ParameterError,
                )
        return encoder

    def weightless_encoder(self, schema: Schema) -> nn.Module:
        """Returns the encoder with shapes alone: it takes no memory, whatever its size."""
        with torch.device("meta"):
            return self.new_encoder(schema, seed=0)

    def check(self, name: str, schema: Schema) -> None:
        """Refuses what cannot be trained on a graph of this name.

        Raises:
            ParameterError: the recipe asks for it.
            GraphError: the graph has no edges.
        """
        recipe = self.recipe
        if schema.is_plain:
            return
        own, views = self.own_encoder is not None, self.own_perturbation is not None
        known = f"{ENCODER!r}, once per relation, on a typed graph"
        require(own or recipe.encoder == ENCODER, "recipe", "encoder", known, recipe.encoder)
        whole = "false on a typed graph, which is trained with all its nodes"
        require(not recipe.inductive, "recipe", "inductive", whole, recipe.inductive)
        drops, given = views or recipe.perturbation == "drop", recipe.perturbation
        require(drops, "recipe", "perturbation", "'drop' on a typed graph", given)
        demand(any(one.num_edges for one in schema.relations), f"{name}: no relation has edges")

    @property
    def perturbation(self) -> Perturbation:
        """The distribution that views are drawn from."""
        return _ready(  # type: ignore[no-any-return]
            PERTURBATIONS,
            self.recipe.perturbation,
            self.own_perturbation,
            edge_drop=self.recipe.edge_drop,
            feature_drop=self.recipe.feature_drop,
        )

    @property
    def loss(self) -> Loss:
        """What training minimises."""
        return _ready(  # type: ignore[no-any-return]
            LOSSES,
            self.recipe.loss,
            self.own_loss,
            temperature=self.recipe.temperature,
            precision=self.recipe.precision,
        )

    def _overrides(self, graph: Graph, key: str) -> dict[Key, Any]:
        """Returns what the recipe says otherwise for relations, which the graph has."""
        named = parse_overrides(self.recipe.overrides)[key]
        return {graph.relation(name).key: value for name, value in named.items()}

    def perturbation_of(self, graph: Graph) -> Perturbation:
        """Returns it with the recipe's overrides, whose relations and types the graph has."""
        if graph.is_plain or self.own_perturbation is not None:
            return self.perturbation
        recipe, named = self.recipe, parse_overrides(self.recipe.overrides)["feature_drop"]
        types = {graph.type(name).name: value for name, value in named.items()}
        relations = self._overrides(graph, "edge_drop")
        return Drop(recipe.edge_drop, recipe.feature_drop, relations, types)

    def fan_outs(self, schema: Schema, graph: Graph) -> dict[Direction, int]:
        """Returns the children that a node has in each direction; see `fan_outs_of`."""
        if schema.is_plain:
            return {EDGES: self.recipe.fan_out}
        sizes = {name: one.num_nodes for name, one in graph.nodes.items()}
        return fan_outs_of(schema, sizes, self.recipe.fan_out, self._overrides(graph, "fan_out"))

    def footprint(self, schema: Schema) -> Footprint:
        """Returns what the encoder asks of a training, without memory for its weights."""
        return Footprint.of(
            self.weightless_encoder(schema),
            self.recipe.encoder,
            dim=self.recipe.dim,
            layers=self.recipe.layers,
            sampled=isinstance(self.perturbation, Drop),
        )

    def prepare(self, graphs: Sequence[Graph]) -> list[Prepared]:
        """Prepares graphs to train on, as far as training may look at them.

        Of several processes the first decides how ``auto`` scales, so that all scale alike to the
        last bit.
        """
        recipe, share = self.recipe, current_share()
        self.check(graphs[0].name, Schema.of(graphs[0]))
        if share.first or recipe.feature_scaling != "auto":
            found = prepare(graphs, recipe.feature_scaling, inductive=recipe.inductive)
        if share.world > 1 and recipe.feature_scaling == "auto":
            own = found[0].schema.to_json() if share.first else {}
            schema = Schema.from_json(json.loads(from_rank(json.dumps(own).encode(), share)))
            kept = safetensors.torch.save(found[0].scaling.tensors()) if share.first else b""
            tensors = safetensors.torch.load(from_rank(kept, share))
            scaling = Scaling.read("auto", schema, tensors)
            if not share.first:
                found = [prepare_like(graph, schema, scaling) for graph in graphs]
        return [self.seen(one) for one in found]

    def seen(self, prepared: Prepared) -> Prepared:
        """Returns what training may look at: of an inductive training, the training nodes."""
        if not self.recipe.inductive:
            return prepared
        return replace(prepared, graph=training_subgraph(prepared.graph))

    def source(
        self,
        prepared: Prepared,
        *,
        device: torch.device,
        mode: str = "",
        ignore_memory: bool = False,
    ) -> tuple[OneGraph, Mode]:
        """Returns the batches of one graph, whole or sampled, and which and why.

        In a group of processes each gets its part of a whole graph, if the parts of the training
        allow that and there are enough nodes; else each gets all of it.

        Args:
            prepared: the graph, from `prepare`.
            device: where to train.
            mode: ``full`` or ``sampled`` where that is decided already; else the recipe decides.
            ignore_memory: start even where the estimate says that memory will not suffice.

        Raises:
            TrainingError: they would not fit in memory, and `ignore_memory` is false.
        """
        recipe, share, graph = self.recipe, current_share(), prepared.graph
        schema = prepared.schema
        footprint = self.footprint(schema)
        divides = (
            schema.is_plain
            and 1 < share.world <= graph.num_nodes
            and can_divide(self.weightless_encoder(schema), self.perturbation)
        )
        processes = {"dividing": share.world if divides else 1, "beside": beside(device)}
        chosen = choose_mode(graph, mode or recipe.mode, footprint, device=device, **processes)
        batch_nodes = recipe.batch_nodes or SAMPLED_BATCH_NODES
        if not ignore_memory:
            check_memory(
                graph,
                chosen,
                footprint,
                batch_nodes=batch_nodes,
                fan_out=recipe.fan_out,
                feature_scaling=recipe.feature_scaling,
                precision=recipe.precision,
                device=device,
                **processes,
            )
        if chosen.name == "full":
            among = share if divides else ALONE
            return FullGraph.of(
                prepared,
                device=device,
                divided=among,
                batch_nodes=recipe.batch_nodes,
                contrast=recipe.contrast,
            ), chosen
        sampled = SampledGraph.of(
            graph,
            device=device,
            feature_scaling=prepared.scaling,
            fan_outs=self.fan_outs(schema, graph),
            replace=recipe.sample_with_replacement,
            precision=recipe.precision,
            batch_nodes=batch_nodes,
            layers=len(footprint.widths),
            own_features=footprint.own,
            contrast=recipe.contrast,
        )
        return sampled, chosen

    def batches(
        self,
        prepared: Sequence[Prepared],
        *,
        device: torch.device,
        modes: Sequence[str] = (),
        ignore_memory: bool = False,
    ) -> tuple[OneGraph | ManyGraphs, list[Mode]]:
        """Returns the batches of one graph or several, and how each graph is trained and why.

        `modes` has one entry per graph where they are decided already, as by a checkpoint. Else the
        recipe decides, and of several processes the first, whose memory the others may not have.
        """
        shared: Any = {"device": device, "ignore_memory": ignore_memory}
        built = [
            self.source(graph, mode=mode, **shared)
            for graph, mode in zip(prepared, modes or [""] * len(prepared), strict=True)
        ]
        chosen = [mode.name for _, mode in built]
        agreed = json.loads(from_rank(json.dumps(chosen).encode(), current_share()))
        if agreed != chosen:
            return self.batches(prepared, modes=agreed, **shared)
        sources = tuple(source for source, _ in built)
        return sources[0] if len(sources) == 1 else ManyGraphs(sources), [mode for _, mode in built]


def _ready(registry: Registry, name: str, own: Any, **values: Any) -> Any:
    """Returns a caller's ready object, or builds the named part with the recipe's values."""
    part = registry.resolve(name, own)
    build = answerable(registry.kind, part, part)
    ready = build(**values) if own is None or isinstance(own, type) else part
    require(callable(ready), registry.kind, "the object", "callable", ready)
    return ready


if TYPE_CHECKING:  # they know what makes them, which takes a while to import
    from graphcl.estimator.fitting import Health


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

        The bits of a row do not depend on the other rows: see `stable_product`.
        """
        out = z if z.flags.writeable else np.array(z)
        for some in blocks(len(out), BLOCK):
            rows = torch.from_numpy(out[some])
            rows.copy_(stable_product(rows, self.rotation) + self.shift)
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
        demand(
            rotation.shape == (width, width) and rotation.dtype == torch.float32,
            f"rotation {tuple(rotation.shape)}, shift {tuple(shift.shape)}",
            RunError,
        )
        demand(
            shift.dtype == torch.float32 and bool(torch.isfinite(shift).all()),
            "shift holds a number that is not finite",
            RunError,
        )
        off = (rotation.double() @ rotation.double().T - torch.eye(width)).abs().max()
        demand(float(off) < 1e-3, "rotation is not orthogonal", RunError)
        return cls(rotation, shift)


def align(new: Any, old: Any) -> Alignment:
    """Returns what brings new embeddings of some nodes to their old ones.

    Args:
        new: ``[nodes, dim]``, as the model now embeds them; arrays may be mapped.
        old: the same nodes in the same order, in the space to keep.

    Raises:
        GraphError: there is no node, or the widths differ.
    """
    demand(
        len(new) and new.shape == old.shape,
        f"align: embeddings {new.shape} and {old.shape}; expected the same nodes",
    )
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
            aligned=self.alignment is not None,
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
        """Reads a run as trained, or the folder of a version; `own` are objects for `Components`.

        Raises:
            RunError: the directory is missing, damaged, or replaced meanwhile.
            ParameterError: the run's encoder is not registered, or another one was passed.
        """
        check = kept_place(folder)
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
            alignment = Alignment.from_tensors(read_tensors(turned)) if config.aligned else None
        check()
        seconds = history[-1].seconds if history else 0.0
        return cls(
            components, encoder, schema, scaling, seed, history, seconds, alignment=alignment
        )


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
    demand(schema.is_plain, f"{folder / runs.SCHEMA}: its sizes do not fit {runs.MODEL}", RunError)
    (width,) = schema.widths.values()
    wrong = f"num_features = {width} and dim = {components.recipe.dim}"
    raise RunError(f"{folder / runs.CONFIG}: {wrong} do not fit {runs.MODEL}")
