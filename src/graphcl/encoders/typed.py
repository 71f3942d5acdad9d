r"""An encoder of typed graphs: the paper's mean once per relation, from one statement of a layer.

.. math::
    H_t^{(0)} &= X_t M_t \\
    H_t' &= \sigma\Bigl(\nu_t\Bigl(\sum_{r \to t} \bigl(\hat A_r H_{s(r)} + \bar E_r B_r\bigr) W_r
        + H_t W_t\Bigr)\Bigr)

:math:`M_t` is the input map of node type t. The sum is over the directions r of relations in which
nodes of type t receive, each with its own :math:`W_r`. :math:`\hat A_r H` is the mean over senders
(`graphcl.kernels.relation`), and :math:`\bar E_r` the same mean of the edges' vectors: since the
message of an edge with vector e is :math:`(h_v + e B_r) W_r`, both are one mean of messages. The
node's own part has :math:`W_t`. The input maps are linear, so a mean can be taken before or after
them.

Relations with few edges cannot determine a matrix. If there are more than `BASES` directions of
such relations, they share that many matrices, as in R-GCN (Schlichtkrull et al., 2018):
:math:`W_r = \sum_b a_{rb} V_b`.

For one type and one undirected relation this is the paper's encoder with residual units, on
:math:`X M`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from graphcl.encoders.layer import glorot
from graphcl.encoders.paper import RowNorm
from graphcl.encoders.side_by_side import SideBySide, divide_columns
from graphcl.graphs.schema import Channel, Schema
from graphcl.kernels.elu import elu_in_place
from graphcl.kernels.features import Features, linear
from graphcl.kernels.relation import RelationAdjacency, relation_mean
from graphcl.settings import check_setting

BASES = 4  # matrices that relations with few edges share in a layer
FEW_EDGES = 1000  # below, a relation's own matrix would be guesswork

Rows = Mapping[str, Tensor]
Relations = Mapping[tuple[str, str, str], RelationAdjacency]


@dataclass(frozen=True)
class Message:
    """What travels in one direction of a relation in one layer.

    Attributes:
        channel: the direction.
        pooled: W_r, ``[inputs, outputs]``.
        edges: B_r, ``[edge features, inputs]``; None if edges have no vectors.
    """

    channel: Channel
    pooled: Tensor
    edges: Tensor | None = None


@dataclass(frozen=True)
class TypedLayer:
    """The statement of one layer of a typed encoder.

    Attributes:
        messages: one for each direction of a relation.
        own: W_t of each type, ``[inputs, outputs]``.
        normalisation: ν_t of each type; empty: none.
        activation: an elementwise function, or None.
    """

    messages: tuple[Message, ...]
    own: Rows
    normalisation: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    activation: Callable[[Tensor], Tensor] | None = elu

    @property
    def outputs(self) -> int:
        """The width of the layer's result."""
        return next(iter(self.own.values())).shape[1]

    def into(self, node_type: str) -> list[Message]:
        """Returns the messages that nodes of a type receive."""
        return [one for one in self.messages if one.channel.receiver == node_type]

    def finish(self, node_type: str, h: Tensor, *, inplace: bool = False) -> Tensor:
        """Applies what follows the sum: normalisation and activation.

        With `inplace` the rows of `h` may be overwritten, which is faster on a CPU.
        """
        if self.normalisation:
            h = self.normalisation[node_type](h)
        if inplace and self.activation is elu:
            return elu_in_place(h)
        return h if self.activation is None else self.activation(h)

    def on_graph(
        self, h: Rows, relations: Relations, rows: Rows | None = None
    ) -> dict[str, Tensor]:
        """Returns the layer's result on all nodes of all types, or on some `rows` of some types.

        A graph may lack types and relations that the encoder knows.
        """
        found = {}
        for node_type, table in h.items() if rows is None else [(t, h[t]) for t in rows]:
            chosen = None if rows is None else rows[node_type]
            total = (table if chosen is None else table[chosen]) @ self.own[node_type]
            for message in self.into(node_type):
                relation = relations.get(message.channel.relation)
                if relation is not None:
                    total = total + self._received(message, relation, h, chosen)
            found[node_type] = self.finish(node_type, total)
        return found

    def _received(
        self, message: Message, relation: RelationAdjacency, h: Rows, rows: Tensor | None
    ) -> Tensor:
        backwards = message.channel.backwards
        mean = relation_mean(h[message.channel.sender], relation, backwards=backwards, rows=rows)
        if message.edges is not None and relation.features is not None:
            mean = mean + relation.edge_mean(backwards, rows) @ message.edges
        return mean @ message.pooled


class TypedEncoder(nn.Module):
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
    ) -> None:
        super().__init__()
        check_setting("encoder", "normalisation", normalisation)
        check_setting("encoder", "own_features", own_features)
        self.schema = schema
        # All types share the widths: a type with fewer features than others repeats them.
        own, widths = divide_columns(
            max(schema.widths.values()),
            dim=dim,
            layers=layers,
            side_by_side=side_by_side,
            own_features=own_features,
            repeat_own=repeat_own,
        )
        self._types = {one.name: number for number, one in enumerate(schema.types)}
        self._channels = [one for one in schema.channels() if self._edges_of(one)]
        few = [one for one in self._channels if self._edges_of(one) < FEW_EDGES]
        self._shared = few if len(few) > BASES else []
        self.inputs = _matrices((one.num_features, widths[0]) for one in schema.types)
        shapes = list(pairwise([widths[0], *widths]))
        alone = [one for one in self._channels if one not in self._shared]
        self.pooled = nn.ModuleList(_matrices(shape for _ in alone) for shape in shapes)
        self.own = nn.ModuleList(_matrices(shape for _ in schema.types) for shape in shapes)
        self.edges = nn.ModuleList(
            _matrices((self._vectors_of(one), inputs) for one in self._with_vectors())
            for inputs, _ in shapes
        )
        if self._shared:
            self.bases = nn.ModuleList(_matrices([shape] * BASES) for shape in shapes)
            self.coefficients = _matrices([(len(self._shared), BASES)] * layers)
        if normalisation == "layer" and layers > 1:
            self.normalisations = nn.ModuleList(
                nn.ModuleList(RowNorm(width) for _ in schema.types) for width in widths[:-1]
            )
        glorot(self, generator)
        self.beside: nn.ModuleList | None = None
        if side_by_side or own:
            self.beside = nn.ModuleList(
                SideBySide(
                    one.num_features, own, widths, every_layer=side_by_side, generator=generator
                )
                for one in schema.types
            )
        self._widths = widths

    def _edges_of(self, channel: Channel) -> int:
        found = (one for one in self.schema.relations if one.key == channel.relation)
        return next(found).num_edges

    def _vectors_of(self, channel: Channel) -> int:
        found = (one for one in self.schema.relations if one.key == channel.relation)
        return next(found).num_edge_features

    def _with_vectors(self) -> list[Channel]:
        return [one for one in self._channels if self._vectors_of(one)]

    @property
    def width(self) -> int:
        """The columns of an embedding."""
        if self.beside is None:
            return self._widths[-1]
        return cast("SideBySide", self.beside[0]).width

    @property
    def layer_widths(self) -> list[int]:
        """The width of each layer's result."""
        return list(self._widths)

    def part(self, node_type: str) -> SideBySide | None:
        """Returns what an embedding of a type holds; None: the result of the last layer alone."""
        if self.beside is None:
            return None
        found = self.beside[self._types[node_type]]
        assert isinstance(found, SideBySide)
        return found

    def input_map(self, node_type: str) -> Tensor:
        """Returns M_t, ``[features, width of the first layer]``."""
        return cast("Tensor", self.inputs[self._types[node_type]])

    def statement(self) -> tuple[TypedLayer, ...]:
        """Returns the layers, from the input to the embedding; the last has no activation."""
        last = len(self._widths) - 1
        return tuple(self._layer(number, activates=number < last) for number in range(last + 1))

    def _layer(self, number: int, *, activates: bool) -> TypedLayer:
        alone, vectors = iter(_held(self.pooled, number)), iter(_held(self.edges, number))
        shared = iter(self._mixed(number)) if self._shared else iter(())
        messages = []
        for channel in self._channels:
            pooled = next(shared) if channel in self._shared else next(alone)
            with_vectors = self._vectors_of(channel) > 0
            messages.append(Message(channel, pooled, next(vectors) if with_vectors else None))
        normal: dict[str, Callable[[Tensor], Tensor]] = {}
        if activates and hasattr(self, "normalisations"):
            normal = dict(zip(self._types, _held(self.normalisations, number), strict=True))
        own = dict(zip(self._types, _held(self.own, number), strict=True))
        return TypedLayer(tuple(messages), own, normal, elu if activates else None)

    def _mixed(self, number: int) -> Tensor:
        """Returns the matrices of relations that share a basis, ``[directions, in, out]``."""
        bases = torch.stack(_held(self.bases, number))
        return torch.einsum("rb,bio->rio", self.coefficients[number], bases)

    def start(self, x: Mapping[str, Features]) -> dict[str, Tensor]:
        """Returns the result of the input maps."""
        return {name: linear(table, self.input_map(name)) for name, table in x.items()}

    def results(self, x: Mapping[str, Features], relations: Relations) -> list[dict[str, Tensor]]:
        """Returns the results of all layers on all nodes."""
        h, found = self.start(x), []
        for layer in self.statement():
            h = layer.on_graph(h, relations)
            found.append(h)
        return found

    def forward(self, x: Mapping[str, Features], relations: Relations) -> dict[str, Tensor]:
        """Returns the result of the last layer, which training contrasts."""
        return self.results(x, relations)[-1]

    def on_rows(
        self, x: Mapping[str, Features], relations: Relations, rows: Rows
    ) -> dict[str, Tensor]:
        """Returns some rows of what `forward` returns, to rounding.

        On a CPU the last layer computes these rows alone.
        """
        *before, last = self.statement()
        h = self.start(x)
        for layer in before:
            h = layer.on_graph(h, relations)
        if all(chosen.is_cuda for chosen in rows.values()):
            whole = last.on_graph(h, relations)
            return {name: whole[name][chosen] for name, chosen in rows.items()}
        return last.on_graph(h, relations, rows)

    def embedding(self, x: Mapping[str, Features], relations: Relations) -> dict[str, Tensor]:
        """Returns the embeddings of all nodes, ``[nodes, width]`` for each type."""
        results = self.results(x, relations)
        return {
            name: results[-1][name]
            if part is None
            else part.join(table, [result[name] for result in results])
            for name, table in x.items()
            for part in [self.part(name)]
        }


def _matrices(shapes: Iterable[tuple[int, int]]) -> nn.ParameterList:
    return nn.ParameterList(torch.empty(shape) for shape in shapes)


def _held(modules: nn.ModuleList, number: int) -> list[Any]:
    """Returns the parameters, or the modules, of one layer."""
    return list(cast("Any", modules[number]))
