r"""Embeddings that hold several scales side by side: the node itself, one hop, two hops.

This goes beyond the paper, whose embedding is the last layer alone. What a node is can be lost on
the way there: where neighbours differ, a mean over them tells little of the node itself. So an
embedding may keep more than one result:

.. math:: z = \bigl[\, X R \;\big|\; H^{(1)} \;\big|\; \dots \;\big|\; H^{(L)} \,\bigr]

R is a random matrix, drawn with the weights and never trained: inner products of features survive
in few columns. Where there are no more features than columns for them, R is the identity, which can
be repeated until it fills them, so that few features weigh as much as many. Training contrasts
:math:`H^{(L)}`, as without this.

After training, each part is brought to mean 0 and to one size, so that a distance between two
embeddings means as much in each. These figures are taken from training nodes and stay with the
weights.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graphcl.errors import require
from graphcl.kernels.features import Features, linear


def divide_columns(
    num_features: int,
    *,
    dim: int,
    layers: int,
    side_by_side: bool,
    own_features: float,
    repeat_own: bool = False,
) -> tuple[int, list[int]]:
    """Returns how many columns of `dim` hold own features, and how wide each layer is.

    Own features take their share of the columns; unless they are repeated, no more columns than
    there are features. One column is left for each layer. Layers that stand side by side share
    the rest; otherwise each layer is that wide.

    Raises:
        ParameterError: a layer would have no column.
    """
    least = layers if side_by_side else 1
    need = f"at least {least}, a column for each layer that stands side by side"
    require(dim >= least, "encoder", "dim", need, dim)
    own = min(round(own_features * dim), dim - least)
    if not repeat_own:
        own = min(own, num_features)
    rest = dim - own
    if not side_by_side:
        return own, [rest] * layers
    widths = [rest // layers] * layers
    widths[-1] += rest - sum(widths)
    return own, widths


class SideBySide(nn.Module):
    """What stands side by side in an embedding, and the size of each part.

    Its tensors are stored with the weights; none is trained.

    Attributes:
        projection: R, ``[num_features, own]``; identities side by side if all features fit.
        shift: the mean of each column, ``[dim]``; 0 until `calibrate`.
        scale: the factor of each column, ``[dim]``; 1 until `calibrate`.
    """

    def __init__(
        self,
        num_features: int,
        own: int,
        widths: Sequence[int],
        *,
        every_layer: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self._kept = range(len(widths)) if every_layer else range(len(widths) - 1, len(widths))
        self._widths = [own, *(widths[number] for number in self._kept)]
        projection = torch.empty(num_features, own)
        if own >= num_features:
            projection.zero_()
            for start in range(0, own, num_features):  # `eye_` without memory imports a compiler
                projection[:, start : start + num_features].diagonal().fill_(1)
        elif projection.device.type != "meta":  # without memory, this imports it too
            nn.init.normal_(projection, std=own**-0.5 if own else 1.0, generator=generator)
        self.projection: Tensor
        self.shift: Tensor
        self.scale: Tensor
        self.register_buffer("projection", projection)
        self.register_buffer("shift", torch.zeros(self.width))
        self.register_buffer("scale", torch.ones(self.width))

    @property
    def width(self) -> int:
        """The columns of an embedding."""
        return sum(self._widths)

    def columns(self, layer: int | None) -> slice | None:
        """Returns the columns of a layer, or with None of own features; None if it has none."""
        place = 0 if layer is None else self._kept.index(layer) + 1 if layer in self._kept else -1
        if place < 0 or self._widths[place] == 0:
            return None
        start = sum(self._widths[:place])
        return slice(start, start + self._widths[place])

    def finish(self, part: Tensor, columns: slice) -> Tensor:
        """Returns a part of an embedding from its result."""
        return (part.float() - self.shift[columns]) * self.scale[columns]

    def join(self, x: Features, results: Sequence[Tensor]) -> Tensor:
        """Returns embeddings from the features and the results of all layers."""
        parts = []
        own = self.columns(None)
        if own is not None:
            parts.append(self.finish(linear(x, self.projection), own))
        for number, result in enumerate(results):
            columns = self.columns(number)
            if columns is not None:
                parts.append(self.finish(result, columns))
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def calibrate(self, z: Tensor) -> None:
        """Brings each part of embeddings like `z` to mean 0 and a mean square of its rows of 1."""
        z = z.to(self.shift) / self.scale + self.shift
        self.shift.copy_(z.mean(0))
        start = 0
        for width in self._widths:
            columns = slice(start, start + width)
            size = (z[:, columns] - self.shift[columns]).square().sum(1).mean().sqrt()
            self.scale[columns] = 1 / size if size > 0 else 1.0
            start += width
