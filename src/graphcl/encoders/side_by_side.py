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
weights. A part that is the same for all of these nodes, up to rounding, becomes 0: enlarged to that
size, its rounding errors would look like a signal (`graphcl.encoders.rounding`).
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from graphcl.errors import require
from graphcl.kernels.features import Features, linear
from graphcl.settings import check_setting

EXACT = 1024  # rows or columns up to which their products are diagonalised
SPARE = 16  # directions of a subspace beyond those wanted, so that the last wanted are near
TURNS = 2  # how often a subspace is turned towards the leading directions
RANK = 1e-10  # of the largest eigenvalue: directions below are rounding
EQUAL = 1e-11  # of the largest eigenvalue: two that are nearer than this are equal but for rounding
BLOCK = 4096  # rows or columns of a table that are in float64 at a time
# Differences between nodes, relative to what was summed, up to which a part is constant. Sums in
# float32 are rounded by 6e-8 of their terms; over the neighbours of a hub, by some 1e-6.
ROUNDING = 1e-5
OWN, SMOOTHED = "own features", "smoothed features"  # names of parts in messages


def root_mean_square(rows: Tensor) -> float:
    """Returns the root mean square of the lengths of rows."""
    return float(rows.double().square().sum(1).mean().sqrt())


def divide_columns(
    num_features: int,
    *,
    dim: int,
    layers: int,
    side_by_side: bool,
    own_features: float,
    repeat_own: bool = False,
    smoothed_features: float = 0.0,
    normalisation: str = "none",
) -> tuple[int, int, list[int]]:
    """Returns how many columns of `dim` hold own features, and smoothed ones, and each layer.

    Features take their shares of the columns; unless they are repeated, no more columns than there
    are features. Layers that stand side by side share the rest; otherwise each layer is that wide.
    Each layer has one column at least, and two if hidden layers are normalised: of one column, less
    its mean, nothing would be left.

    Raises:
        ParameterError: a share is not one, or a layer would have no column.
    """
    check_setting("encoder", "own_features", own_features)
    check_setting("encoder", "smoothed_features", smoothed_features)
    beside = layers if side_by_side else 1
    narrowest = 1
    reason = ", one column for each layer"
    if normalisation == "layer" and layers > 1:
        narrowest = 2
        reason = ", two columns for each layer, since a single one that is normalised is always 0"
    least = narrowest * beside
    need = f"at least {least} with layers={layers}{reason}"
    require(dim >= least, "encoder", "dim", need, dim)
    most = dim - least if repeat_own else min(dim - least, num_features)
    own = min(round(own_features * dim), most)
    smoothed = min(round(smoothed_features * dim), most, dim - least - own)
    rest = dim - own - smoothed
    if not side_by_side:
        return own, smoothed, [rest] * layers
    widths = [rest // layers] * (layers - 1)
    widths.append(rest - sum(widths))
    return own, smoothed, widths


@torch.no_grad()
def principal_directions(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Returns orthonormal directions in which rows vary most, largest first, ``[P, count]``.

    Fewer are returned if the rows have fewer. All is computed in float64, and each direction has a
    sign that does not depend on the library that finds it, so a CPU and a GPU agree to rounding.

    Args:
        x: rows, ``[n, P]``, which are not centred.
        count: how many directions, at most.
        generator: on the CPU; draws the subspace and the signs.
    """
    num_rows, num_features = x.shape
    count = min(count, num_rows, num_features)
    rows = x
    if min(num_rows, num_features) > EXACT:
        rows = _leading_combinations(x, min(count + SPARE, num_rows, num_features), generator)
    if num_features <= len(rows):
        sizes, directions = torch.linalg.eigh(_products(rows.T))
    else:
        sizes, combinations = torch.linalg.eigh(_products(rows))
        # A direction is the combination Xᵀu of rows, whose squared length is the eigenvalue.
        lengths = sizes.clamp(min=torch.finfo(sizes.dtype).tiny).sqrt()
        directions = _multiply(rows.T, combinations) / lengths
    sizes = sizes.flip(0)
    directions = directions.flip(1)
    rank = int((sizes > sizes[:1] * RANK).sum())
    fixed = _fix_directions(directions[:, :rank], sizes[:rank], generator)
    return fixed[:, :count].to(x)


def _leading_combinations(x: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Returns few rows ``[size, P]`` that vary as `x` does along its leading directions.

    They are X in an orthonormal basis of a random subspace, which is turned by products with X and
    its transpose and orthonormalised after each (Halko et al., 2011, algorithm 4.4).
    """
    drawn = torch.randn(x.shape[1], size, generator=generator, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(_multiply(x, drawn.to(x.device)))[0]
    for _ in range(TURNS):
        image = torch.linalg.qr(_multiply(x.T, basis))[0]
        basis = torch.linalg.qr(_multiply(x, image))[0]
    return _multiply(x.T, basis).T


def _fix_directions(directions: Tensor, sizes: Tensor, generator: torch.Generator) -> Tensor:
    """Returns the same directions with signs, and bases of equal sizes, that are stated.

    An eigenvector has no sign, and vectors of equal eigenvalues are any basis of their span: each
    library returns another. Here a random matrix is projected onto the span of each group of
    equal sizes and orthonormalised; this depends on the span and on the generator alone.
    """
    num_features, count = directions.shape
    drawn = torch.randn(num_features, count, generator=generator, dtype=torch.float64)
    coordinates = directions.T @ drawn.to(directions.device)
    fixed = directions.clone()
    signs = torch.where(coordinates.diagonal() < 0, -1.0, 1.0)
    for start, end in _equal_sizes(sizes):
        if end - start == 1:
            fixed[:, start] *= signs[start]
            continue
        basis, upper = torch.linalg.qr(coordinates[start:end, start:end])
        basis = basis * torch.where(upper.diagonal() < 0, -1.0, 1.0)  # makes the factors unique
        fixed[:, start:end] = directions[:, start:end] @ basis
    return fixed


def _equal_sizes(sizes: Tensor) -> list[tuple[int, int]]:
    """Returns the ranges of descending sizes whose neighbours are equal but for rounding."""
    apart = (sizes[:-1] - sizes[1:]) > sizes[:1] * EQUAL
    borders = [0, *(apart.nonzero().flatten() + 1).tolist(), len(sizes)]
    return list(pairwise(borders))


def _multiply(matrix: Tensor, columns: Tensor) -> Tensor:
    """Returns a product in float64, without a copy of the whole matrix in it."""
    blocks = torch.split(matrix, BLOCK)
    return torch.cat([block.double() @ columns for block in blocks])


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
        scale: the factor of each column, ``[dim]``; 1 until `calibrate`, 0 in a constant part.
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
        self.kept = range(len(widths)) if every_layer else range(len(widths) - 1, len(widths))
        self._widths = [own, *(widths[number] for number in self.kept), smoothed]
        self.projection = nn.Buffer(_projection(num_features, own, generator))
        if smoothed:
            self.smoother = nn.Buffer(_projection(num_features, smoothed, generator))
        self.shift = nn.Buffer(torch.zeros(self.width))
        self.scale = nn.Buffer(torch.ones(self.width))

    @property
    def width(self) -> int:
        """The columns of an embedding."""
        return sum(self._widths)

    @property
    def constant_parts(self) -> list[str]:
        """The names of the parts that are 0 in every embedding, because they were constant."""
        names = [OWN, *(f"layer {number + 1}" for number in self.kept), SMOOTHED]
        found = []
        start = 0
        for name, width in zip(names, self._widths, strict=True):
            scale = self.scale[start : start + width]
            if width and not bool(scale.any()):
                found.append(name)
            start += width
        return found

    def columns(self, layer: int | None) -> slice | None:
        """Returns the columns of a layer, or with None of own features; None if it has none.

        Those of the last layer go on with the smoothed features, as its result does.
        """
        place = 0 if layer is None else self.kept.index(layer) + 1 if layer in self.kept else -1
        if place < 0 or self._widths[place] == 0:
            return None
        last = layer is not None and layer + 1 == self.kept.stop
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
    def reset(self) -> None:
        """Lets embeddings have the parts as they are computed, until the next `calibrate`."""
        self.shift.zero_()
        self.scale.fill_(1)

    @torch.no_grad()
    def calibrate(self, z: Tensor, rounding: Sequence[float] | None = None) -> None:
        """Brings each part of embeddings like `z` to mean 0 and a mean square of its rows of 1.

        A part that is constant up to rounding becomes 0. Of fewer than two rows nothing is known:
        their parts keep the size that they have.

        Args:
            z: embeddings as they are after `reset`, ``[n, dim]``.
            rounding: of each part, differences between rows that may be rounding; None: only those
                that are small beside the part itself count as rounding.
        """
        z = z.to(self.shift)
        self.shift.copy_(z.mean(0))
        self.scale.fill_(1)
        if len(z) < 2:
            return
        start = 0
        for number, width in enumerate(self._widths):
            columns = slice(start, start + width)
            size = (z[:, columns] - self.shift[columns]).square().sum(1).mean().sqrt()
            least = ROUNDING * root_mean_square(z[:, columns])
            if rounding is not None:
                least = max(least, rounding[number])
            self.scale[columns] = 1 / size if size > least else 0.0
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
