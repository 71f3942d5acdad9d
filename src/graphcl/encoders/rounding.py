r"""How much the parts of an embedding may differ between nodes by rounding alone.

A part can be the same for every node: on a complete graph all nodes have one mean. Computed in
float32, its values still differ a little. Where terms cancel, these differences are as large as
what is left of the terms, so they are compared with the terms: with :math:`|X| |W|`, where the part
is :math:`X W`.

A layer normalisation enlarges small differences, by :math:`1 / \sqrt{10^{-5}} \approx 300` where a
row is nearly 0. So rounding errors are sent through what follows the products of a layer
(`Layer.finish`), from the value that the layer would have if all nodes were alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from graphcl.encoders.layer import Layer, LayeredEncoder
from graphcl.encoders.side_by_side import ROUNDING, root_mean_square
from graphcl.kernels.features import linear

SAMPLE = 256  # rows of features that are looked at, for each type


@dataclass(frozen=True)
class _Rows:
    """Rows of one type at the input of a layer.

    Attributes:
        values: ``[rows, width]``.
        terms: the sums of the absolute values of what they were summed from.
        centre: the value of every node if all nodes were alike, ``[1, width]``.
    """

    values: Tensor
    terms: Tensor
    centre: Tensor

    @classmethod
    def of_features(cls, x: Tensor, weight: Tensor | None) -> Self:
        """Returns the input of the first layer: features, or what an input map makes of them."""
        values, terms, centre = x, x.abs(), x.mean(0, keepdim=True)
        if weight is None:
            return cls(values, terms, centre)
        return cls(values @ weight, terms @ weight.abs(), centre @ weight)

    def resized(self, count: int) -> Self:
        """Returns `count` rows: the first ones, or all of them repeatedly."""
        places = torch.arange(count, device=self.values.device) % len(self.values)
        return replace(self, values=self.values[places], terms=self.terms[places])

    def times(self, weight: Tensor) -> Self:
        """Returns the products with a matrix."""
        products = self.values @ weight
        return replace(
            self, values=products, terms=self.terms @ weight.abs(), centre=self.centre @ weight
        )

    def plus(self, other: Self) -> Self:
        """Returns the sums of two tables of as many rows."""
        return replace(
            self,
            values=self.values + other.values,
            terms=self.terms + other.terms,
            centre=self.centre + other.centre,
        )


@torch.no_grad()
def rounding_of_parts(
    encoder: LayeredEncoder, features: Mapping[str, Tensor]
) -> dict[str, list[float]]:
    """Returns the size that differences have by rounding, for each part of a type's embedding.

    The parts are in the order of the columns; a size is the root mean square of a row's length.

    Args:
        encoder: its embeddings have parts side by side.
        features: rows of each type, scaled as in training, ``[rows, features]``.
    """
    encoder.eval()
    rows: dict[str, Tensor] = {}
    for name, table in features.items():
        weight = next(iter(encoder.levels()[0].values())).received[0].pooled
        kept = table[:: max(1, len(table) // SAMPLE)][:SAMPLE].to(weight)
        rows[name] = kept if len(kept) else kept.new_zeros(1, table.shape[1])
    by_layer = _rounding_of_layers(encoder, rows)
    smoothed = 0.0  # the means are taken over nodes of every type
    for name, x in rows.items():
        part = encoder.part(name)
        if part is not None and part.smoothed:
            smoothed = max(smoothed, root_mean_square(x.abs() @ part.smoother.abs()))
    found: dict[str, list[float]] = {}
    for name, x in rows.items():
        part = encoder.part(name)
        if part is None:
            continue
        own = ROUNDING * root_mean_square(linear(x.abs(), part.projection.abs()))
        layers = [by_layer[number][name] for number in part.kept]
        found[name] = [own, *layers, ROUNDING * smoothed]
    return found


def _rounding_of_layers(
    encoder: LayeredEncoder, features: Mapping[str, Tensor]
) -> Sequence[Mapping[str, float]]:
    """Returns the size of rounding in the result of each layer, by type.

    The rows that go on to the next layer are those of nodes whose neighbours are like themselves:
    what counts is how large they usually are.
    """
    inputs = {name: _Rows.of_features(x, encoder.input_map(name)) for name, x in features.items()}
    found = []
    for level in encoder.levels():
        results: dict[str, _Rows] = {}
        sizes: dict[str, float] = {}
        for name in inputs:
            layer = level[name]
            summed = _sum_of_products(layer, name, inputs)
            sizes[name] = _rounding_after(layer, summed)
            values = layer.finish(summed.values).float()
            results[name] = _Rows(values, values.abs(), layer.finish(summed.centre).float())
        found.append(sizes)
        inputs = results
    return found


def _sum_of_products(layer: Layer, name: str, inputs: Mapping[str, _Rows]) -> _Rows:
    """Returns what a layer sums, before bias, normalisation and activation."""
    rows = inputs[name]
    products = [] if layer.own is None else [rows.times(layer.own)]
    for message in layer.received:
        sender = inputs.get(message.direction.sender)
        if sender is not None:
            products.append(sender.resized(len(rows.values)).times(message.pooled))
    if not products:
        nothing = rows.values.new_zeros(len(rows.values), layer.outputs)
        return _Rows(nothing, nothing, nothing[:1])
    total = products[0]
    for product in products[1:]:
        total = total.plus(product)
    return total


def _rounding_after(layer: Layer, summed: _Rows) -> float:
    """Returns the size of rounding after what follows the products."""
    draw = torch.Generator().manual_seed(0)
    signs = torch.randint(2, summed.terms.shape, generator=draw).to(summed.terms) * 2 - 1
    moved = layer.finish(summed.centre + ROUNDING * signs * summed.terms)
    return root_mean_square(moved.float() - layer.finish(summed.centre).float())
