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
from graphcl.encoders import EncoderFactory, build_encoder
from graphcl.encoders.typed import TypedEncoder
from graphcl.errors import require
from graphcl.graphs.collection import training_subgraph
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import ColumnScaling, Scaling, fit_scaling
from graphcl.graphs.schema import Schema
from graphcl.graphs.tensors import graph_tensors
from graphcl.losses import Loss
from graphcl.recipes import Recipe
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

    def footprint(self, num_features: int) -> Footprint:
        """Returns what the encoder asks of a training, without memory for its weights."""
        return Footprint.of(
            self.weightless_encoder(num_features),
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
        graph: Graph,
        *,
        device: torch.device,
        scaling: Scaling | None = None,
        mode: str = "",
        ignore_memory: bool = False,
    ) -> tuple[OneGraph, Mode]:
        """Returns the batches of one graph, whole or sampled, and which and why.

        In a group of processes each gets its part of a whole graph, if the parts of the training
        allow that and there are enough nodes; else each gets all of it.

        `mode` is ``full`` or ``sampled`` where that is decided already; else the recipe decides.
        `scaling` is of `fit_scaling`; None fits it to this graph alone.

        Raises:
            TrainingError: they would not fit in memory, and `ignore_memory` is false.
        """
        recipe = self.recipe
        if scaling is None:
            scaling = self.fit_scaling([graph])
        if recipe.inductive:
            graph = training_subgraph(graph)
        footprint = self.footprint(graph.num_features)
        share = current_share()
        divides = 1 < share.world <= graph.num_nodes and can_divide(
            self.weightless_encoder(graph.num_features), self.perturbation
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
        sampled = SampledGraph.of(
            graph,
            device=device,
            feature_scaling=scaling,
            batch_nodes=batch_nodes,
            fan_outs=(recipe.fan_out,) * len(footprint.widths),
            replace=recipe.sample_with_replacement,
            own_features=footprint.own,
            precision=recipe.precision,
        )
        return sampled, chosen

    def batches(
        self,
        graphs: Sequence[Graph],
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
            scaling = self.fit_scaling(graphs)
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
