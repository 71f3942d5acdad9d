r"""Embeddings that hold several scales side by side: the node itself, one hop, two hops.

This goes beyond the paper, whose embedding is the last layer alone. What a node is can be lost on
the way there: where neighbours differ, a mean over them tells little of the node itself. So an
embedding may keep more than one result:

.. math:: z = \bigl[\, X R \;\big|\; H^{(1)} \;\big|\; \dots \;\big|\; H^{(L)} \;\big|\;
    \hat A^L X S \,\bigr]

R and S take the features to few columns. Before training they are random, drawn with the weights:
inner products of features survive. Training then turns them to the principal directions of the
features it saw (`principal_directions`), in a random basis, so that all columns are alike. Where
there are no more features than columns for them, R is the identity, which can be repeated until it
fills them, so that few features weigh as much as many. Neither is trained by gradients: the last
part is what the layers would give if they were linear, and its columns run through them when a
graph is embedded (`graphcl.encoders.layer`). Training contrasts :math:`H^{(L)}`, as without this.

After training, each part is brought to mean 0 and to one size, so that a distance between two
embeddings means as much in each. These figures are taken from training nodes and stay with the
weights.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from graphcl.errors import require
from graphcl.kernels.features import Features, linear
from graphcl.settings import check_setting

EXACT = 1024  # rows or columns up to which their products are diagonalised
SPARE, TURNS = 16, 2  # more directions than wanted, and how often they are turned
RANK = 1e-10  # of the largest product: directions below are rounding
BLOCK = 4096  # columns of a wide table that are in float64 at a time


def divide_columns(
    num_features: int,
    *,
    dim: int,
    layers: int,
    side_by_side: bool,
    own_features: float,
    repeat_own: bool = False,
    smoothed_features: float = 0.0,
) -> tuple[int, int, list[int]]:
    """Returns how many columns of `dim` hold own features, and smoothed ones, and each layer.

    Features take their shares of the columns; unless they are repeated, no more columns than there
    are features. One column is left for each layer. Layers that stand side by side share the rest;
    otherwise each layer is that wide.

    Raises:
        ParameterError: a share is not one, or a layer would have no column.
    """
    check_setting("encoder", "own_features", own_features)
    check_setting("encoder", "smoothed_features", smoothed_features)
    least = layers if side_by_side else 1
    need = f"at least {least}, a column for each layer that stands side by side"
    require(dim >= least, "encoder", "dim", need, dim)
    most = dim - least if repeat_own else min(dim - least, num_features)
    own = min(round(own_features * dim), most)
    smoothed = min(round(smoothed_features * dim), most, dim - least - own)
    rest = dim - own - smoothed
    if not side_by_side:
        return own, smoothed, [rest] * layers
    widths = [rest // layers] * layers
    widths[-1] += rest - sum(widths)
    return own, smoothed, widths


@torch.no_grad()
def principal_directions(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Returns orthonormal directions in which rows vary most, the first first, ``[P, count]``.

    Fewer are returned if the rows have fewer. Their products are diagonalised if they are few; else
    a random subspace is turned towards the largest ones, which takes a few products (Halko et al.,
    2011).

    Args:
        x: rows, ``[n, P]``, which are not centred.
        count: how many directions, at most.
        generator: on the CPU; draws the subspace.
    """
    count, wide = min(count, *x.shape), x.shape[0] < x.shape[1]
    if min(x.shape) > EXACT:
        drawn = torch.randn(x.shape[1], min(count + SPARE, *x.shape), generator=generator)
        basis = torch.linalg.qr(x @ drawn.to(x))[0]
        for _ in range(TURNS):
            basis = torch.linalg.qr(x @ torch.linalg.qr(x.T @ basis)[0])[0]
        x, wide = basis.T @ x, True
    size, vectors = torch.linalg.eigh(_products(x if wide else x.T))
    kept = (size > size[-1:] * RANK).flip(0)[:count]
    chosen: Tensor = vectors.flip(1)[:, :count][:, kept].to(x)
    if not wide:
        return chosen
    turned: Tensor = torch.linalg.qr(x.T @ chosen)[0]
    return turned


def _products(rows: Tensor) -> Tensor:
    """Returns the products of rows in float64; in float32 their rounding looks like directions."""
    products = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for block in torch.split(rows, BLOCK, dim=1):
        block = block.double()
        products.addmm_(block, block.T)
    return products


def _random_basis(size: int, generator: torch.Generator) -> Tensor:
    basis: Tensor = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    return basis


class SideBySide(nn.Module):
    """What stands side by side in an embedding, and the size of each part.

    Its tensors are stored with the weights; none is trained.

    Attributes:
        projection: R, ``[num_features, own]``; identities side by side if all features fit.
        smoother: S, ``[num_features, smoothed]``, likewise.
        shift: the mean of each column, ``[dim]``; 0 until `calibrate`.
        scale: the factor of each column, ``[dim]``; 1 until `calibrate`.
    """

    def __init__(
        self,
        num_features: int,
        own: int,
        widths: Sequence[int],
        *,
        smoothed: int = 0,
        every_layer: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.smoothed = smoothed
        self._kept = range(len(widths)) if every_layer else range(len(widths) - 1, len(widths))
        self._widths = [own, *(widths[number] for number in self._kept), smoothed]
        self.projection = nn.Buffer(_projection(num_features, own, generator))
        if smoothed:
            self.smoother = nn.Buffer(_projection(num_features, smoothed, generator))
        self.shift = nn.Buffer(torch.zeros(self.width))
        self.scale = nn.Buffer(torch.ones(self.width))

    @property
    def width(self) -> int:
        """The columns of an embedding."""
        return sum(self._widths)

    def columns(self, layer: int | None) -> slice | None:
        """Returns the columns of a layer, or with None of own features; None if it has none.

        Those of the last layer go on with the smoothed features, as its result does.
        """
        place = 0 if layer is None else self._kept.index(layer) + 1 if layer in self._kept else -1
        if place < 0 or self._widths[place] == 0:
            return None
        last = layer is not None and layer + 1 == self._kept.stop
        start = sum(self._widths[:place])
        return slice(start, start + self._widths[place] + last * self.smoothed)

    def finish(self, part: Tensor, columns: slice) -> Tensor:
        """Returns a part of an embedding from its result; a hidden layer's is cut."""
        part = part[:, : columns.stop - columns.start].float()
        return (part - self.shift[columns]) * self.scale[columns]

    @torch.no_grad()
    def turn(self, x: Tensor, generator: torch.Generator) -> None:
        """Turns R and S to the principal directions of rows of features, ``[n, P]``."""
        own, num_features = self._widths[0], len(self.projection)
        widths = {"projection": own, "smoother": self.smoothed}
        widths = {name: width for name, width in widths.items() if 0 < width < num_features}
        if not widths or not len(x):
            return
        directions = principal_directions(x.float(), max(widths.values()), generator)
        for name, width in widths.items():
            found = directions[:, :width]
            turned = found @ _random_basis(width, generator)[: found.shape[1]].to(found)
            getattr(self, name).copy_(turned)

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


def _projection(num_features: int, columns: int, generator: torch.Generator) -> Tensor:
    """Returns identities side by side if all features fit, else random numbers."""
    found = torch.empty(num_features, columns)
    if columns >= num_features:
        found.zero_()
        for start in range(0, columns, num_features):  # `eye_` without memory imports a compiler
            found[:, start : start + num_features].diagonal().fill_(1)
    elif found.device.type != "meta":  # without memory, this imports it too
        nn.init.normal_(found, std=columns**-0.5 if columns else 1.0, generator=generator)
    return found
