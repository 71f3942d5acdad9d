"""The encoder on the sampled subgraphs of a typed graph, level by level."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import elu

from graphcl.encoders.layer import Layer, LayeredEncoder, Message
from graphcl.errors import ParameterError
from graphcl.kernels.elu import elu_in_place
from graphcl.typed_drawing import Children, Nodes
from graphcl.typed_sampling import Level

Piece = tuple[str, int, int]  # a type, and the first row and the end of some of its rows


def encode_levels(levels: Sequence[Level], encoder: LayeredEncoder) -> dict[str, Tensor]:
    """Returns the embeddings of the seed nodes in both views, ``[2, n, dim]`` for each type.

    Layer l is computed on levels 0 to L − l, as in `graphcl.sampling`. The parts of a layer are one
    product: of own rows and means side by side, and of their matrices one above the other.
    """
    h: list[dict[str, Tensor]] = []
    layers = encoder.statement()
    depth = len(layers)
    for number, of_types in enumerate(layers):
        above = []
        for hop in range(depth - number):
            level, found = levels[hop], {}
            below = _pieces(level, h[hop + 1]) if number else {}
            for name, table in level.items():
                layer = of_types[name]
                joined, matrix = (
                    _first(encoder, layer, name, table)
                    if number == 0
                    else _later(layer, table, h[hop][name], below)
                )
                flat = joined.reshape(-1, joined.shape[2]) @ matrix
                found[name] = _finish(layer, flat).view(2, -1, layer.outputs)
            above.append(found)
        h = above
    return h[0]


def _finish(layer: Layer, h: Tensor) -> Tensor:
    """Applies what follows the products; an ELU in place, which is faster on a CPU."""
    if layer.activation is not elu:
        return layer.finish(h)
    return elu_in_place(replace(layer, activation=None).finish(h))


def _messages(layer: Layer, table: Nodes) -> list[tuple[Children, Message]]:
    """Returns what was drawn in each direction, with the message that it is for.

    Raises:
        ParameterError: the layer has none in a direction, or does not use a node's own row.
    """
    known = {one.direction: one for one in layer.received}
    drawn = {one.direction.channel for one in table.children}
    if layer.own is None or not drawn <= set(known):
        raise ParameterError(
            "encoder: to be sampled, a layer of a graph with types has weights for a node's own "
            "row and for every direction of its relations; set mode=full"
        )
    return [(one, known[one.direction.channel]) for one in table.children]


def _pieces(level: Level, below: Mapping[str, Tensor]) -> dict[Piece, Tensor]:
    """Returns the rows of the level below by type and place, those of one direction each.

    They are split once: the gradient of a slice would be a whole table of zeros.
    """
    found: dict[Piece, Tensor] = {}
    for name, rows in below.items():
        spans = sorted(
            (one.rows.start, one.rows.stop)
            for table in level.values()
            for one in table.children
            if one.direction.channel.sender == name
        )
        parts = torch.split(rows, [stop - start for start, stop in spans], dim=1)
        found |= {(name, *span): part for span, part in zip(spans, parts, strict=True)}
    return found


def _first(encoder: LayeredEncoder, layer: Layer, name: str, table: Nodes) -> tuple[Tensor, Tensor]:
    """Returns the rows and the matrix of the first layer, whose matrices include the input maps."""
    assert table.inputs is not None

    def mapped(sender: str, weight: Tensor | None) -> Tensor:
        into = encoder.input_map(sender)
        assert weight is not None
        return weight if into is None else into @ weight

    received = _messages(layer, table)
    matrices = [mapped(name, layer.own)]
    for children, message in received:
        matrices.append(mapped(children.direction.channel.sender, message.pooled))
        if message.edges is not None:
            matrices.append(message.edges @ message.pooled)
        else:  # the inputs have columns for the edges' vectors, which this encoder leaves out
            matrices.append(message.pooled.new_zeros(children.direction.vectors, layer.outputs))
    return table.inputs, torch.cat(matrices)


def _later(
    layer: Layer,
    table: Nodes,
    h: Tensor,
    below: Mapping[Piece, Tensor],
) -> tuple[Tensor, Tensor]:
    """Returns the rows and the matrix of a later layer."""
    received = _messages(layer, table)
    assert layer.own is not None
    parts, matrices = [h], [layer.own]
    for children, message in received:
        assert children.weights is not None
        rows_of = children.rows
        sent = below[children.direction.channel.sender, rows_of.start, rows_of.stop]
        rows = sent.reshape(2, h.shape[1], children.direction.fan_out, sent.shape[2])
        mean = (children.weights @ rows)[:, :, 0]
        parts.append(mean if children.own is None else mean + children.own * h)
        matrices.append(message.pooled)
        if message.edges is not None and children.vectors is not None:
            parts.append(children.vectors)
            matrices.append(message.edges @ message.pooled)
    return torch.cat(parts, dim=2), torch.cat(matrices)
