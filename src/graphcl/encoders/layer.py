r"""A layer of an encoder, stated once; every way to compute it follows from the statement.

.. math:: H_t' = \sigma\Bigl(\nu\Bigl(\sum_{r \to t}
    \bigl(\hat A_r H_{s(r)} + \bar E_r B_r\bigr) W_r + H_t W_t + b\Bigr)\Bigr)

It says what nodes of a type t become. The sum is over the messages that they receive, one for each
direction r of a relation that leads to them. :math:`\hat A_r H` is the mean over a node's senders
(`graphcl.kernels.adjacency`); only this term depends on edge weights. :math:`\bar E_r` is the same
mean of the edges' vectors: since the message of an edge with vector e is :math:`(h_v + e B_r) W_r`,
both are one mean of messages. :math:`W_t` multiplies the node's own row, :math:`\nu` is a
normalisation and :math:`\sigma` an activation. Each of these, and the bias b, may be absent.

The paper's layer is the case of one type and one message, :math:`\hat A H W_1 + H W_2`.

The statement is used in four places:

- `Layer.on_graph` computes a layer on all nodes: whole-graph training, and small graphs. Given own
  rows of features and adjacency, it computes these rows (`graphcl.training.full_graph`).
  `Layer.on_rows` computes the nodes of a batch alone;
- `graphcl.sampling.encode_tree` computes it on sampled trees;
- `graphcl.layerwise` computes it on blocks of rows, for graphs of any size;
- `graphcl.training.modes` reads its widths to estimate memory.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from graphcl.encoders.side_by_side import SideBySide
from graphcl.errors import ParameterError
from graphcl.graphs.relation import NODE, Key
from graphcl.graphs.schema import EDGES, Direction
from graphcl.kernels.adjacency import Adjacency, mean_pool, mean_pool_elu
from graphcl.kernels.features import Features, linear, product

GRAIN = 32768  # elements that PyTorch gives to a thread at least (at::internal::GRAIN_SIZE)
BY_ROWS = (nn.LayerNorm, nn.RMSNorm, nn.Identity)

Tables = Mapping[str, Features]  # rows by type of nodes
Relations = Mapping[Key, Adjacency]


@dataclass(frozen=True)
class Message:
    """What travels in one direction of a relation in one layer.

    Attributes:
        pooled: W_r, ``[inputs, outputs]``; multiplies the mean over the neighbourhood.
        direction: which way, along which relation.
        edges: B_r, ``[edge features, inputs]``; None if edges have no vectors.
    """

    pooled: Tensor
    direction: Direction = EDGES
    edges: Tensor | None = None

    def along(self, relations: Relations) -> Adjacency | None:
        """Returns the edges of its direction, by receiver; None if the graph has no such ones."""
        relation = relations.get(self.direction.relation)
        return None if relation is None else relation.toward(self.direction.backwards)

    def edge_term(self, adjacency: Adjacency, rows: Tensor | None = None) -> Tensor | None:
        """Returns the mean of the edges' vectors times B_r; None if they have none."""
        if self.edges is None or adjacency.features is None:
            return None
        return adjacency.edge_mean(rows) @ self.edges


@dataclass(frozen=True)
class Layer:
    """The statement of one layer for the nodes of one type.

    Attributes:
        messages: what the nodes receive; or W_1 alone, ``[inputs, outputs]``, which is one message
            along the edges of a plain graph.
        own: W_t, ``[inputs, outputs]``; multiplies the node's own row. With None, the node only
            contributes to its mean.
        bias: b, ``[outputs]``, or None.
        normalisation: a module or function of ``[rows, outputs]``, before the activation. In
            inference it must treat each row independently, as batch normalisation does with its
            running statistics. In sampled training it gets the rows of all levels together. Several
            processes divide a whole graph if it is `nn.LayerNorm`, `nn.RMSNorm` or None.
        activation: an elementwise function, or None.
        linear: how many columns, the last ones, only hold means: nothing follows the products.
    """

    messages: tuple[Message, ...] | Tensor
    own: Tensor | None = None
    bias: Tensor | None = None
    normalisation: Callable[[Tensor], Tensor] | None = None
    activation: Callable[[Tensor], Tensor] | None = elu
    linear: int = 0

    @property
    def received(self) -> tuple[Message, ...]:
        """The messages, also where W_1 was given alone."""
        return (Message(self.messages),) if isinstance(self.messages, Tensor) else self.messages

    @property
    def pooled(self) -> Tensor:
        """W_1 of a layer with one message."""
        (only,) = self.received
        return only.pooled

    @property
    def outputs(self) -> int:
        """The width of the layer's result."""
        return (self.received[0].pooled if self.own is None else self.own).shape[1]

    @property
    def ends_in_elu(self) -> bool:
        """Whether only ELU follows the products; fused kernels then compute both at once."""
        plain = self.bias is None and self.normalisation is None and not self.linear
        return plain and self.activation is elu

    def with_means(self, columns: int, starts: Mapping[str, Tensor] | None = None) -> "Layer":
        """Returns the layer with more columns, which are means of as many in its input.

        On a plain graph they are means over a node and its neighbours. Otherwise they are the mean
        of the node's own and of what each message brings.

        Args:
            columns: how many, at the end of the input and of the result.
            starts: by type, what they are made of where they are not yet in the input: the matrix
                that its features are multiplied by.
        """
        plain = [message.direction for message in self.received] == [EDGES]
        share = 1.0 if plain else 1 / (len(self.received) + 1)

        def wide(weight: Tensor, sender: str, share: float) -> Tensor:
            if starts is not None:
                return torch.cat([weight, (share * starts[sender]).to(weight)], 1)
            # Nothing is written in place: an exported program has to be functional.
            kept = share * torch.eye(columns, dtype=weight.dtype, device=weight.device)
            above = torch.cat([weight, weight.new_zeros(len(weight), columns)], 1)
            return torch.cat(
                [above, torch.cat([weight.new_zeros(columns, weight.shape[1]), kept], 1)]
            )

        def message_of(one: Message) -> Message:
            edges = one.edges
            if edges is not None and starts is None:
                edges = torch.cat([edges, edges.new_zeros(len(edges), columns)], 1)
            return replace(one, pooled=wide(one.pooled, one.direction.sender, share), edges=edges)

        own = None if self.own is None else wide(self.own, NODE, 0.0 if plain else share)
        messages = tuple(message_of(one) for one in self.received)
        return replace(self, messages=messages, own=own, linear=columns)

    def finish(self, h: Tensor, *, inplace: bool = False) -> Tensor:
        """Applies what follows the products: bias, normalisation, activation.

        Args:
            h: the sum of the products, ``[rows, outputs]``.
            inplace: `h` may be overwritten.
        """
        if self.linear:
            return self._around_linear(h, lambda layer, rest: layer.finish(rest, inplace=inplace))
        if self.bias is not None:
            h = h + self.bias
        if self.normalisation is not None:
            h = self.normalisation(h)
        if self.activation is None:
            return h
        return elu(h, inplace=inplace) if self.activation is elu else self.activation(h)

    def finish_rows(self, block: Tensor) -> Tensor:
        """Returns `finish` of a block; on a CPU ELU has the same bits wherever a row stands.

        PyTorch computes exponentials eight at a time, and what is left over at the end of a
        thread's share one by one, with other bits. So the shares are made whole.
        """
        if self.linear:
            return self._around_linear(block, lambda layer, rest: layer.finish_rows(rest))
        shares, threads = -(-block.numel() // GRAIN), torch.get_num_threads()
        if shares > threads:
            shares = -(-shares // threads) * threads
        whole = shares * GRAIN
        if block.is_cuda or self.activation is not elu or whole == block.numel():
            return self.finish(block, inplace=True)
        before = replace(self, activation=None).finish(block)
        flat = block.new_zeros(whole)
        flat[: block.numel()] = before.reshape(-1)
        return elu(flat, inplace=True)[: block.numel()].view(block.shape)

    def _around_linear(self, h: Tensor, finish: "Callable[[Layer, Tensor], Tensor]") -> Tensor:
        """Returns rows whose last columns stay as they are."""
        cut = h.shape[1] - self.linear
        rest = finish(replace(self, linear=0), h[:, :cut].contiguous())
        return torch.cat([rest, h[:, cut:].to(rest)], 1)

    def on_graph(self, h: Any, relations: Any, node_type: str = NODE) -> Tensor:
        """Returns the layer's result on every node of its type, ``[nodes, outputs]``.

        It is differentiable. A message is pooled before or after the product with its matrix, where
        the rows are narrower. If both widths are equal it is pooled first, except with `own`: then
        the mean would be one more activation to keep for the backward pass.

        Args:
            h: rows of all types; of a plain graph, its rows.
            relations: adjacencies of all relations, of which some may lack; of a plain graph, its
                adjacency.
            node_type: whose layer it is.
        """
        h, relations = as_tables(h, relations)
        total = None if self.own is None else linear(h[node_type], self.own)
        for message in self.received:
            adjacency = message.along(relations)
            if adjacency is None:
                continue
            senders, (inputs, outputs) = h[message.direction.sender], message.pooled.shape
            vectors = message.edge_term(adjacency)
            if isinstance(senders, Tensor) and (
                inputs < outputs or (inputs == outputs and self.own is None)
            ):
                mean = mean_pool(senders, adjacency)
                mean = mean if vectors is None else mean + vectors
                total = _add_product(total, mean, message.pooled)
                continue
            moved = linear(senders, message.pooled)
            if total is None and len(self.received) == 1 and vectors is None and self.ends_in_elu:
                return mean_pool_elu(moved, adjacency)
            mean = mean_pool(moved, adjacency)
            mean = mean if vectors is None else mean + vectors @ message.pooled
            total = mean if total is None else mean + total
        return self.finish(self._nothing(h[node_type].shape[0]) if total is None else total)

    def _nothing(self, rows: int) -> Tensor:
        return self.received[0].pooled.new_zeros(rows, self.outputs)

    @property
    def by_rows(self) -> bool:
        """Whether a row of the result depends on no other row of the products."""
        return self.normalisation is None or isinstance(self.normalisation, BY_ROWS)

    def on_rows(self, h: Any, relations: Any, rows: Tensor, node_type: str = NODE) -> Tensor:
        """Returns some rows of what `on_graph` returns, to rounding, and computes no others.

        It pools first: few rows are multiplied then. On a CPU alone.
        """
        h, relations = as_tables(h, relations)
        total = None if self.own is None else h[node_type][rows] @ self.own
        for message in self.received:
            adjacency = message.along(relations)
            if adjacency is not None:
                mean = adjacency.pool_rows(h[message.direction.sender], rows)
                vectors = message.edge_term(adjacency, rows)
                mean = mean if vectors is None else mean + vectors
                total = _add_product(total, mean, message.pooled)
        return self.finish(self._nothing(len(rows)) if total is None else total)


def _add_product(total: Tensor | None, mean: Tensor, weight: Tensor) -> Tensor:
    return product(mean, weight) if total is None else torch.addmm(total, mean, weight)


def as_tables(x: Any, relations: Any) -> tuple[Tables, Relations]:
    """Returns rows by type and adjacencies by relation; of a plain graph there is one of each."""
    if isinstance(x, Mapping):
        return x, relations
    return {NODE: x}, {EDGES.relation: relations}


class LayeredEncoder(nn.Module):
    """An encoder that states its layers; subclasses define `layer_specs` and their parameters.

    It can train on whole graphs and on sampled trees and embed graphs of any size layer by layer,
    and its training step can be recorded on a GPU. Of a plain graph it is called with features and
    an adjacency; of any other, with features by type and adjacencies by relation.
    """

    recordable = True  # no shape depends on a draw: a CUDA graph can replay a step

    def __init__(self) -> None:
        super().__init__()
        self.beside: SideBySide | None = None  # what an embedding holds; None: the last layer alone

    def layer_specs(self) -> tuple[Any, ...]:
        """Returns the layers, from the input to the embedding: each a `Layer`, or those by type."""
        raise NotImplementedError(f"{type(self).__name__} must define layer_specs()")

    def levels(self) -> tuple[Mapping[str, Layer], ...]:
        """Returns the layers by type."""
        return tuple(
            {NODE: layer} if isinstance(layer, Layer) else layer for layer in self.layer_specs()
        )

    def embedding_levels(self) -> tuple[Mapping[str, Layer], ...]:
        """Returns the layers by type as they embed: with the columns of smoothed features."""
        levels, parts = self.levels(), {name: self.part(name) for name in self.levels()[0]}
        smoothed = {name: part for name, part in parts.items() if part and part.smoothed}
        if not smoothed:
            return levels
        columns = max(part.smoothed for part in smoothed.values())
        mapped = any(self.input_map(name) is not None for name in smoothed)
        starts = None if mapped else {name: part.smoother for name, part in smoothed.items()}
        return tuple(
            {name: layer.with_means(columns, None if place else starts) for name, layer in one}
            for place, one in enumerate(level.items() for level in levels)
        )

    def part(self, node_type: str) -> SideBySide | None:  # noqa: ARG002 (one for all types)
        """Returns what an embedding of a type holds; None: the result of the last layer alone."""
        return self.beside

    def input_map(self, node_type: str) -> Tensor | None:  # noqa: ARG002 (no type has one)
        """Returns the matrix that multiplies a type's features before the first layer, if any."""
        return None

    def embedding_map(self, node_type: str) -> Tensor | None:
        """Returns the same matrix as it embeds: with the columns of smoothed features."""
        weight, part = self.input_map(node_type), self.part(node_type)
        if weight is None or part is None or not part.smoothed:
            return weight
        return torch.cat([weight, part.smoother], 1)

    @property
    def width(self) -> int:
        """The columns of an embedding."""
        beside = self.part(NODE)
        return next(iter(self.levels()[-1].values())).outputs if beside is None else beside.width

    def forward(self, x: Any, relations: Any) -> Any:
        """Returns the result of the last layer, which training contrasts."""
        found = _results(x, relations, self.levels(), self.input_map)[-1]
        return found if isinstance(x, Mapping) else found[NODE]

    def on_rows(self, x: Any, relations: Any, rows: Any) -> Any:
        """Returns some rows of what `forward` returns, to rounding.

        On a CPU the last layer computes these rows alone, which is most of what there is to save:
        the layers before it are needed around them.
        """
        wanted = rows if isinstance(rows, Mapping) else {NODE: rows}
        *before, last = self.levels()
        alone = before and all(
            last[name].by_rows and some.device.type == "cpu" for name, some in wanted.items()
        )
        if not alone or type(self).forward is not LayeredEncoder.forward:
            whole = self(x, relations)
            if not isinstance(whole, Mapping):
                return whole[rows]
            return {name: whole[name][some] for name, some in wanted.items()}
        tables, edges = as_tables(x, relations)
        h = _start(tables, self.input_map)
        for level in before:
            h = _computed(level, h, edges)
        found = {name: last[name].on_rows(h, edges, some, name) for name, some in wanted.items()}
        return found if isinstance(rows, Mapping) else found[NODE]

    def embedding(self, x: Any, relations: Any) -> Any:
        """Returns the embeddings, ``[num_nodes, width]``; of several types, by type."""
        tables, _ = as_tables(x, relations)
        results = _results(x, relations, self.embedding_levels(), self.embedding_map)
        found = {
            name: results[-1][name]
            if part is None
            else part.join(table, [result[name] for result in results])
            for name, table in tables.items()
            for part in [self.part(name)]
        }
        return found if isinstance(x, Mapping) else found[NODE]


def _start(x: Tables, map_of: Callable[[str], Tensor | None]) -> Tables:
    """Returns the input of the first layer: the features, or what input maps make of them."""
    return {
        name: table if (weight := map_of(name)) is None else linear(table, weight)
        for name, table in x.items()
    }


def _results(
    x: Any,
    relations: Any,
    levels: Sequence[Mapping[str, Layer]],
    map_of: Callable[[str], Tensor | None],
) -> list[dict[str, Tensor]]:
    tables, edges = as_tables(x, relations)
    h, results = _start(tables, map_of), []
    for level in levels:
        h = _computed(level, h, edges)
        results.append(h)
    return results


def _computed(level: Mapping[str, Layer], h: Tables, relations: Relations) -> dict[str, Tensor]:
    return {name: level[name].on_graph(h, relations, name) for name in h}


def layered(encoder: nn.Module, who: str = "this") -> LayeredEncoder:
    """Returns an encoder that states its layers, as one.

    Raises:
        ParameterError: it does not, and only works on whole graphs; `who` needs more.
    """
    if isinstance(encoder, LayeredEncoder):
        return encoder
    name = type(encoder).__name__
    raise ParameterError(
        f"{who} needs an encoder that states its layers, like mean or residual; got {name}"
    )


def glorot(module: nn.Module, generator: torch.Generator) -> None:
    """Draws every weight matrix of `module` by Glorot's rule and sets the biases to 0."""
    for name, parameter in module.named_parameters():
        if parameter.ndim >= 2:
            nn.init.xavier_uniform_(parameter, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
