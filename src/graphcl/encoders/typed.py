r"""An encoder of typed graphs: the paper's mean once per relation, from one statement of a layer.

.. math::
    H_t^{(0)} &= X_t M_t \\
    H_t' &= \sigma\Bigl(\nu_t\Bigl(\sum_{r \to t} \bigl(\hat A_r H_{s(r)} + \bar E_r B_r\bigr) W_r
        + H_t W_t\Bigr)\Bigr)

:math:`M_t` is the input map of node type t. The sum is over the directions r of relations in which
nodes of type t receive, each with its own :math:`W_r`; `graphcl.encoders.layer` says what they
send. The input maps are linear, so a mean can be taken before or after them.

Relations with few edges cannot determine a matrix. If there are more than `BASES` directions of
such relations, they share that many matrices, as in R-GCN (Schlichtkrull et al., 2018):
:math:`W_r = \sum_b a_{rb} V_b`.

For one type and one undirected relation this is the paper's encoder with residual units, on
:math:`X M`.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from graphcl.encoders.layer import Layer, LayeredEncoder, Message, glorot
from graphcl.encoders.paper import RowNorm
from graphcl.encoders.side_by_side import SideBySide, divide_columns
from graphcl.graphs.schema import Direction, RelationSchema, Schema
from graphcl.settings import check_setting

BASES = 4  # matrices that relations with few edges share in a layer
FEW_EDGES = 1000  # below, a relation's own matrix would be guesswork


class TypedEncoder(LayeredEncoder):
    """An encoder of typed graphs, which states its layers; see the module.

    It is called as ``encoder(x, relations) -> {type: h}``.

    Args:
        schema: the types and relations that it is for.
        dim: the width of an embedding, the same for all types.
        layers: L.
        generator: a CPU generator; the weights depend on nothing else.
        normalisation: of hidden layers: ``none``, or ``layer``.
        side_by_side: the embedding has the results of all layers.
        own_features: the share of its columns that hold the node's own features.
        repeat_own: that share is filled even if there are fewer features.
        smoothed_features: the share of its columns that hold means of features, as far as L hops.
    """

    partly_used = True  # a batch need not have nodes of every type

    def __init__(
        self,
        schema: Schema,
        *,
        dim: int,
        layers: int,
        generator: torch.Generator,
        normalisation: str = "none",
        side_by_side: bool = False,
        own_features: float = 0.0,
        repeat_own: bool = False,
        smoothed_features: float = 0.0,
    ) -> None:
        super().__init__()
        check_setting("encoder", "normalisation", normalisation)
        self.schema = schema
        # All types share the widths: a type with fewer features than others repeats them.
        own, smoothed, widths = divide_columns(
            max(schema.widths.values()),
            dim=dim,
            layers=layers,
            side_by_side=side_by_side,
            own_features=own_features,
            repeat_own=repeat_own,
            smoothed_features=smoothed_features,
        )
        self._types = {one.name: number for number, one in enumerate(schema.types)}
        self._directions = [one for one in schema.directions() if self._relation(one).num_edges]
        few = [one for one in self._directions if self._relation(one).num_edges < FEW_EDGES]
        self._shared = few if len(few) > BASES else []
        self.inputs = _matrices((one.num_features, widths[0]) for one in schema.types)
        shapes = list(pairwise([widths[0], *widths]))
        alone = [one for one in self._directions if one not in self._shared]
        self.pooled = nn.ModuleList(_matrices(shape for _ in alone) for shape in shapes)
        self.own = nn.ModuleList(_matrices(shape for _ in schema.types) for shape in shapes)
        vectors = [self._relation(one).num_edge_features for one in self._directions]
        self.edges = nn.ModuleList(
            _matrices((width, inputs) for width in vectors if width) for inputs, _ in shapes
        )
        if self._shared:
            self.bases = nn.ModuleList(_matrices([shape] * BASES) for shape in shapes)
            self.coefficients = _matrices([(len(self._shared), BASES)] * layers)
        hidden = widths[:-1] if normalisation == "layer" else []
        self.normalisations = nn.ModuleList(
            nn.ModuleList(RowNorm(width) for _ in schema.types) for width in hidden
        )
        glorot(self, generator)
        self.sides = nn.ModuleList(
            SideBySide(
                one.num_features,
                own,
                widths,
                smoothed=smoothed,
                every_layer=side_by_side,
                generator=generator,
            )
            for one in schema.types
            if side_by_side or own or smoothed
        )
        self._widths = widths

    def _relation(self, direction: Direction) -> RelationSchema:
        return next(one for one in self.schema.relations if one.key == direction.relation)

    def part(self, node_type: str) -> SideBySide | None:
        """Returns what an embedding of a type holds; None: the result of the last layer alone."""
        if not self.sides:
            return None
        return cast("SideBySide", self.sides[self._types.get(node_type, 0)])

    def input_map(self, node_type: str) -> Tensor:
        """Returns M_t, ``[features, width of the first layer]``."""
        return cast("Tensor", self.inputs[self._types[node_type]])

    def layer_specs(self) -> tuple[Mapping[str, Layer], ...]:
        """Returns the layers, from the input to the embedding; the last has no activation."""
        last = len(self._widths) - 1
        return tuple(self._level(number, activates=number < last) for number in range(last + 1))

    def _level(self, number: int, *, activates: bool) -> dict[str, Layer]:
        alone, vectors = iter(_held(self.pooled, number)), iter(_held(self.edges, number))
        shared = iter(self._mixed(number)) if self._shared else iter(())
        messages: dict[str, list[Message]] = {name: [] for name in self._types}
        for direction in self._directions:
            pooled = next(shared) if direction in self._shared else next(alone)
            edges = next(vectors) if self._relation(direction).num_edge_features else None
            messages[direction.receiver].append(Message(pooled, direction, edges))
        normal: list[Any] = [None] * len(self._types)
        if number < len(self.normalisations):
            normal = _held(self.normalisations, number)
        parts = zip(messages.items(), _held(self.own, number), normal, strict=True)
        activation = elu if activates else None
        return {
            name: Layer(tuple(received), own, normalisation=norm, activation=activation)
            for (name, received), own, norm in parts
        }

    def _mixed(self, number: int) -> Tensor:
        """Returns the matrices of relations that share a basis, ``[directions, in, out]``."""
        bases = _held(self.bases, number)
        mix: Tensor = self.coefficients[number]
        if mix.is_meta:  # sizes are counted; there, `stack` imports a compiler, which takes seconds
            return mix.new_empty(len(mix), *bases[0].shape)
        return torch.einsum("rb,bio->rio", mix, torch.stack(bases))


def _matrices(shapes: Iterable[tuple[int, int]]) -> nn.ParameterList:
    return nn.ParameterList(torch.empty(shape) for shape in shapes)


def _held(modules: nn.ModuleList, number: int) -> list[Any]:
    """Returns the parameters, or the modules, of one layer."""
    return list(cast("Any", modules[number]))
