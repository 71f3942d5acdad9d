"""From a recipe, and the objects that a caller brings for it, to the parts of a training."""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import safetensors.torch
import torch
from torch import nn

from graphcl.distributed import beside, current_share, from_rank
from graphcl.encoders import EncoderFactory, LayeredEncoder, build_encoder, stated_layers
from graphcl.encoders.typed import TypedEncoder
from graphcl.errors import GraphError, ParameterError, require
from graphcl.graphs.collection import training_subgraph
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import ColumnScaling, Scaling, fit_scaling
from graphcl.graphs.schema import Direction, Schema
from graphcl.graphs.tensors import graph_tensors
from graphcl.graphs.typed_tensors import Prepared, typed_tensors
from graphcl.losses import Loss
from graphcl.recipes import Recipe
from graphcl.recipes.recipe import parse_exceptions
from graphcl.registry import ENCODERS, LOSSES, PERTURBATIONS, Registry, answerable
from graphcl.seeding import generator
from graphcl.settings import ENCODER_OPTIONS
from graphcl.training import DividedGraph, FullGraph, ManyGraphs, SampledGraph
from graphcl.training.divided import can_divide
from graphcl.training.modes import (
    SAMPLED_BATCH_NODES,
    Footprint,
    Mode,
    Processes,
    check_memory,
    choose_mode,
)
from graphcl.training.sampled import fan_outs_of
from graphcl.views import Drop, Perturbation

OneGraph = FullGraph | DividedGraph | SampledGraph


@dataclass(frozen=True)
class Parts:
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
        return cls(recipe.with_values(**changed or {}, **names), *objects)

    def new_encoder(self, inputs: int | Schema, *, seed: int) -> nn.Module:
        """Returns the encoder on the CPU: fresh weights, or a copy of the caller's module.

        Args:
            inputs: the number of features; or the types and relations of a graph that has some.
            seed: decides the weights.
        """
        options: Any = {"dim": self.recipe.dim, "layers": self.recipe.layers}
        options |= {"generator": generator(seed, "weights")}
        options |= {key: getattr(self.recipe, key) for key in ENCODER_OPTIONS}
        if not isinstance(inputs, int) and self.own_encoder is None:
            return TypedEncoder(inputs, **options)
        chosen: Any = ENCODERS.resolve(self.recipe.encoder, self.own_encoder)
        if isinstance(chosen, nn.Module):
            return copy.deepcopy(chosen)
        build: Any = answerable("encoder", chosen, build_encoder)
        encoder: nn.Module = build(chosen, inputs, **options)
        return encoder

    def weightless_encoder(self, inputs: int | Schema) -> nn.Module:
        """Returns the encoder with shapes alone: it takes no memory, whatever its size."""
        with torch.device("meta"):
            return self.new_encoder(inputs, seed=0)

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

    def perturbation_of(self, graph: Graph) -> Perturbation:
        """Returns it with the recipe's exceptions, whose relations and types the graph has."""
        if graph.is_plain or self.own_perturbation is not None:
            return self.perturbation
        recipe, different = self.recipe, parse_exceptions(self.recipe.exceptions)
        relations = {graph.relation(name).key: v for name, v in different["edge_drop"].items()}
        types = {graph.type(name).name: v for name, v in different["feature_drop"].items()}
        return Drop(recipe.edge_drop, recipe.feature_drop, relations, types)

    def fan_outs(self, schema: Schema, graph: Graph) -> dict[Direction, int]:
        """Returns the children that a node has in each direction; see `fan_outs_of`."""
        named = parse_exceptions(self.recipe.exceptions)["fan_out"]
        own = {graph.relation(name).key: count for name, count in named.items()}
        sizes = {name: one.num_nodes for name, one in graph.nodes.items()}
        return fan_outs_of(schema, sizes, self.recipe.fan_out, own)

    def footprint(self, inputs: int | Schema) -> Footprint:
        """Returns what the encoder asks of a training, without memory for its weights."""
        return Footprint.of(
            self.weightless_encoder(inputs),
            self.recipe.encoder,
            dim=self.recipe.dim,
            layers=self.recipe.layers,
            sampled=isinstance(self.perturbation, Drop),
        )

    def fit_scaling(self, graphs: Sequence[Graph]) -> Scaling:
        """Returns how features are scaled; ``auto`` looks at the rows that training may see.

        Of several processes the first decides, so that all scale alike to the last bit.
        """
        recipe, share = self.recipe, current_share()
        if recipe.feature_scaling != "auto" or share.world == 1:
            return fit_scaling(recipe.feature_scaling, graphs, inductive=recipe.inductive)
        found = b""
        if share.first:
            fitted = fit_scaling("auto", graphs, inductive=recipe.inductive)
            assert isinstance(fitted, ColumnScaling)
            found = safetensors.torch.save(fitted.tensors())
        tensors = safetensors.torch.load(from_rank(found, share))
        return ColumnScaling.from_tensors(tensors, graphs[0].num_features)

    def source(
        self,
        given: Graph | Prepared,
        *,
        device: torch.device,
        scaling: Scaling | None = None,
        mode: str = "",
        ignore_memory: bool = False,
    ) -> tuple[OneGraph, Mode]:
        """Returns the batches of one graph, whole or sampled, and which and why.

        In a group of processes each gets its part of a whole graph, if the parts of the training
        allow that and there are enough nodes; else each gets all of it.

        Args:
            given: a plain graph; or one with types, whose features are prepared.
            device: where to train.
            scaling: of a plain graph, from `fit_scaling`; None fits it to this graph alone.
            mode: ``full`` or ``sampled`` where that is decided already; else the recipe decides.
            ignore_memory: start even where the estimate says that memory will not suffice.

        Raises:
            TrainingError: they would not fit in memory, and `ignore_memory` is false.
        """
        recipe, share = self.recipe, current_share()
        graph = given.graph if isinstance(given, Prepared) else given
        inputs = given.schema if isinstance(given, Prepared) else given.num_features
        if not isinstance(given, Prepared):
            scaling = self.fit_scaling([graph]) if scaling is None else scaling
            graph = training_subgraph(graph) if recipe.inductive else graph
        footprint = self.footprint(inputs)
        divides = (
            isinstance(given, Graph)
            and 1 < share.world <= graph.num_nodes
            and can_divide(self.weightless_encoder(inputs), self.perturbation)
        )
        processes = Processes(share.world if divides else 1, beside(device))
        chosen = choose_mode(
            graph, mode or recipe.mode, footprint, device=device, processes=processes
        )
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
                processes=processes,
            )
        sampling: Any = {
            "device": device,
            "replace": recipe.sample_with_replacement,
            "precision": recipe.precision,
            "batch_nodes": batch_nodes,
            "layers": len(footprint.widths),
            "own_features": footprint.own,
        }
        if isinstance(given, Prepared):
            if chosen.name == "full":
                tables = typed_tensors(graph, device=device, scaling=given.scaling)
                return FullGraph(*tables, recipe.batch_nodes, recipe.contrast), chosen
            sampling |= {"fan_outs": self.fan_outs(given.schema, graph)}
            return SampledGraph.of_types(given, **sampling, contrast=recipe.contrast), chosen
        assert scaling is not None
        if chosen.name == "full" and divides:
            divided = DividedGraph.of(
                graph,
                share=share,
                device=device,
                feature_scaling=scaling,
                batch_nodes=recipe.batch_nodes,
            )
            return divided, chosen
        if chosen.name == "full":
            tensors = graph_tensors(graph, device=device, feature_scaling=scaling)
            return FullGraph(*tensors, recipe.batch_nodes), chosen
        sampling |= {"feature_scaling": scaling, "fan_out": recipe.fan_out}
        return SampledGraph.of(graph, **sampling), chosen

    def batches(
        self,
        graphs: Sequence[Graph | Prepared],
        *,
        device: torch.device,
        scaling: Scaling | None = None,
        modes: Sequence[str] = (),
        ignore_memory: bool = False,
    ) -> tuple[OneGraph | ManyGraphs, list[Mode]]:
        """Returns the batches of one graph or several, and how each graph is trained and why.

        `modes` has one entry per graph where they are decided already, as by a checkpoint. Else the
        recipe decides, and of several processes the first, whose memory the others may not have.
        """
        if scaling is None:
            scaling = self.fit_scaling([one for one in graphs if isinstance(one, Graph)])
        shared: Any = {"device": device, "scaling": scaling, "ignore_memory": ignore_memory}
        built = [
            self.source(graph, mode=mode, **shared)
            for graph, mode in zip(graphs, modes or [""] * len(graphs), strict=True)
        ]
        chosen = [mode.name for _, mode in built]
        agreed = json.loads(from_rank(json.dumps(chosen).encode(), current_share()))
        if agreed != chosen:
            return self.batches(graphs, modes=agreed, **shared)
        sources = tuple(source for source, _ in built)
        return sources[0] if len(sources) == 1 else ManyGraphs(sources), [mode for _, mode in built]


def _ready(registry: Registry, name: str, own: Any, **values: Any) -> Any:
    """Returns a caller's ready object, or builds the named part with the recipe's values."""
    part = registry.resolve(name, own)
    build = answerable(registry.kind, part, part)
    ready = build(**values) if own is None or isinstance(own, type) else part
    require(callable(ready), registry.kind, "the object", "callable", ready)
    return ready


ENCODER = "residual"  # the paper's encoder that a typed one extends


def encoder_of(parts: Parts, schema: Schema, *, seed: int) -> LayeredEncoder:
    """Returns a fresh encoder on the CPU, which states its layers for each type.

    Raises:
        ParameterError: an encoder of the caller's own does not.
    """
    encoder = parts.new_encoder(schema, seed=seed)
    stated_layers(encoder, "a graph with types")
    assert isinstance(encoder, LayeredEncoder)
    for number, level in enumerate(encoder.levels()):
        if set(level) != set(schema.widths):
            raise ParameterError(
                f"encoder: layer {number} is stated for the types {', '.join(level)}; the graph's "
                f"are {', '.join(schema.widths)}"
            )
    return encoder


def check_typed(parts: Parts, name: str, num_edges: int) -> None:
    """Refuses what cannot be trained on the typed graph of this name.

    Raises:
        ParameterError: the recipe asks for it.
        GraphError: the graph has no edges.
    """
    recipe = parts.recipe
    if recipe.encoder != ENCODER and parts.own_encoder is None:
        raise ParameterError(
            f"encoder: a typed graph is encoded by {ENCODER!r}, once per relation; "
            f"got {recipe.encoder!r}"
        )
    if recipe.inductive:
        raise ParameterError("inductive: a typed graph is trained with all its nodes; leave it out")
    if recipe.perturbation != "drop" and parts.own_perturbation is None:
        raise ParameterError(f"perturbation: typed graphs know 'drop'; got {recipe.perturbation!r}")
    if not num_edges:
        raise GraphError(f"{name}: no relation has edges")
