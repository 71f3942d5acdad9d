"""From a recipe, and the objects that a caller brings for it, to the parts of a training."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import safetensors.torch
import torch
from torch import nn

from graphcl.distributed import ALONE, beside, current_share, from_rank
from graphcl.encoders import EncoderFactory, LayeredEncoder, build_encoder, stated_layers
from graphcl.encoders.typed import TypedEncoder
from graphcl.errors import GraphError, ParameterError, require
from graphcl.graphs.collection import training_subgraph
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Key
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.schema import EDGES, Direction, Schema
from graphcl.graphs.tensors import Prepared, prepare, prepare_like
from graphcl.losses import Loss
from graphcl.recipes import Recipe
from graphcl.recipes.recipe import parse_overrides
from graphcl.registry import ENCODERS, LOSSES, PERTURBATIONS, Registry, answerable
from graphcl.seeding import generator
from graphcl.settings import ENCODER_OPTIONS
from graphcl.training import FullGraph, ManyGraphs, SampledGraph
from graphcl.training.full_graph import can_divide
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
        options: Any = {"dim": self.recipe.dim, "layers": self.recipe.layers}
        options |= {"generator": generator(seed, "weights")}
        options |= {key: getattr(self.recipe, key) for key in ENCODER_OPTIONS}
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
            stated_layers(encoder, "a graph with types")
            assert isinstance(encoder, LayeredEncoder)
            for number, level in enumerate(encoder.levels()):
                if set(level) != set(schema.widths):
                    raise ParameterError(
                        f"encoder: layer {number} is stated for the types {', '.join(level)}; the "
                        f"graph's are {', '.join(schema.widths)}"
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
        if not any(one.num_edges for one in schema.relations):
            raise GraphError(f"{name}: no relation has edges")

    @property
    def perturbation(self) -> Perturbation:
        """The distribution that views are drawn from."""
        rates = {"edge_drop": self.recipe.edge_drop, "feature_drop": self.recipe.feature_drop}
        return _ready(PERTURBATIONS, self.recipe.perturbation, self.own_perturbation, **rates)  # type: ignore[no-any-return]

    @property
    def loss(self) -> Loss:
        """What training minimises."""
        values = {"temperature": self.recipe.temperature, "precision": self.recipe.precision}
        return _ready(LOSSES, self.recipe.loss, self.own_loss, **values)  # type: ignore[no-any-return]

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
            options: Any = {"batch_nodes": recipe.batch_nodes, "contrast": recipe.contrast}
            return FullGraph.of(prepared, device=device, divided=among, **options), chosen
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
