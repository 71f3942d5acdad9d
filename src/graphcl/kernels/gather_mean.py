r"""The first layer's means on a sampled tree, for both views, without storing the tree's features.

In each view, the mean of a parent :math:`u` over children :math:`c` of weight :math:`w_c` is

.. math::
    m_u = \frac{s\, \tilde x_u + \sum_{c\ \mathrm{kept}} w_c\, \tilde x_c}
               {s + \sum_{c\ \mathrm{kept}} w_c},

where an edge is kept with probability 1 − `edge_drop` and :math:`\tilde x` is :math:`x` after
dropout. Within one type of nodes s = 1; between two types s = 0, and a parent without children has
the mean 0. In the tree of one seed node, an edge and a node have the same draws wherever they
occur. At fan-outs (10, 10, 10) a batch has 1,111 feature rows per seed node and 111 means per view.
Each row is read once and perturbed for both views, and only the means are written.
"""

from typing import NamedTuple

import numpy as np
from torch import Tensor

from graphcl.errors import InvalidInputError, option
from graphcl.kernels.counter import Draws, draw_long_word, draw_word, threshold
from graphcl.kernels.parallel import parallel, prange
from graphcl.kernels.stored_features import StoredFeatures, as_float, row_of

_NONE = np.empty(0, dtype=np.int64)


class Family(NamedTuple):
    """Parents of one type in a level, and their sampled children in one direction.

    Attributes:
        parents: node numbers, ``[n]``.
        children: node numbers, ``[n · fan_out]``, those of a parent side by side; none at all if
            only the parents' own features are wanted.
        weight: of each child, ``[n · fan_out]`` float32; 0 marks an empty slot.
        places: the place in the batch of each parent's seed node, ``[n]``; draws depend on it.
        parent_rows: where the parents' features are, if not at their numbers.
        child_rows: likewise those of the children.
    """

    parents: Tensor
    children: Tensor
    weight: Tensor
    places: Tensor
    parent_rows: Tensor | None = None
    child_rows: Tensor | None = None

    @property
    def fan_out(self) -> int:
        """Children per parent."""
        return len(self.children) // max(len(self.parents), 1)


def gather_mean(
    x: Tensor | StoredFeatures,
    family: Family,
    *,
    draws: Draws,
    out: Tensor,
    column: int = 0,
    own: int | None = None,
    edges: Tensor | None = None,
) -> None:
    """Writes the module's means for both views into `out`.

    Args:
        x: features of the children, and of the parents where these are of the same type,
            ``[nodes, P]``; on a CPU a float32 tensor, or a table in a store's type.
        family: parents and children.
        draws: the perturbation.
        out: ``[2, n, columns]``.
        column: the first of the P columns for the means.
        own: the first of the P columns for the parents' own perturbed features; None: they are not
            wanted. Only within one type.
        edges: if given, the draw of each child's edge is written here, ``[n · fan_out]`` int64.
    """
    if not len(family.parents):
        return
    if isinstance(x, Tensor) and x.is_cuda:
        try:
            from graphcl.kernels.gather_mean_triton import gather_mean as fused
        except ImportError:
            raise InvalidInputError(
                "sampled training on a GPU needs Triton, which is not installed; "
                f"{option('device', 'cpu')} trains without it"
            ) from None
        fused(x, family, draws=draws, out=out, column=column, own=own, edges=edges)
        return
    words = [np.uint32(int(word)) for key in (draws.edges, draws.features) for word in key]
    limits = [np.uint32(threshold(drop)) for drop in (draws.edge_drop, draws.feature_drop)]
    stored = StoredFeatures(x) if isinstance(x, Tensor) else x
    # Contiguous: each layout is compiled anew, which takes seconds.
    parts = (_NONE if part is None else part.contiguous().numpy() for part in family)
    _gather_mean(
        *stored.arrays(), x.shape[1], *parts, *words, *limits,
        draws.within, draws.order, column, -1 if own is None else own, out[0].numpy(),
        out[1].numpy(), _NONE if edges is None else edges.numpy(),
    )  # fmt: skip


@parallel
def _gather_mean(  # type: ignore[no-untyped-def]
    x, row_divisor, width, parents, children, weight, places, parent_rows, child_rows,
    edge_0, edge_1, feature_0, feature_1, edge_limit, feature_limit,
    within, order, at, own, out_0, out_1, edges,
):  # fmt: skip
    fan_out = children.shape[0] // parents.shape[0]
    low, half = np.uint32(0xFFFF), np.uint32(16)
    nothing = np.uint32(0x10000)  # a limit above every half of a draw: all features are dropped
    zero = np.float32(0)
    scaled, store_edges = row_divisor.shape[0] > 0, edges.shape[0] > 0
    moved_parents, moved_children = parent_rows.shape[0] > 0, child_rows.shape[0] > 0
    scale = np.float32(65536 / (65536 - np.int64(feature_limit)))
    for row in prange(parents.shape[0]):
        # Not summed in `out_0` and `out_1`: they are often a multiple of 4,096 bytes apart, and
        # then each store stalls the other's load (measured: four times slower). The 16 extra
        # columns keep these two rows from such a distance at common widths.
        sums = np.zeros((2, width + 16), np.float32)
        sum_0, sum_1 = sums[0], sums[1]
        buffer = np.empty(width, np.float32)
        weight_0 = weight_1 = np.float32(1 if within else 0)
        parent, place = np.int64(parents[row]), np.int64(places[row])
        seed_edge_0 = draw_long_word(place, edge_0, edge_1)
        seed_edge_1 = draw_long_word(place, edge_1, edge_0)
        seed_feature_0 = draw_long_word(place, feature_0, feature_1)
        seed_feature_1 = draw_long_word(place, feature_1, feature_0)
        for child in range(row * fan_out, (row + 1) * fan_out):
            w, node = weight[child], np.int64(children[child])
            one, other = min(parent, node), max(parent, node)  # see `Draws.order`
            if order == 1:
                one, other = node, parent
            elif order == 2:
                one, other = parent, node
            one_0 = draw_long_word(one, seed_edge_0, seed_edge_1)
            one_1 = draw_long_word(one, seed_edge_1, seed_edge_0)
            edge = draw_long_word(other, one_0, one_1)
            if store_edges:
                edges[child] = edge
            in_0 = w != zero and np.uint32(edge & low) >= edge_limit
            in_1 = w != zero and np.uint32(edge >> half) >= edge_limit
            if not (in_0 or in_1):
                continue
            weight_0 += w if in_0 else zero
            weight_1 += w if in_1 else zero
            # One loop over the columns serves both views, also if only one of them has the edge.
            limit_0 = feature_limit if in_0 else nothing
            limit_1 = feature_limit if in_1 else nothing
            word_0 = draw_long_word(node, seed_feature_0, seed_feature_1)
            word_1 = draw_long_word(node, seed_feature_1, seed_feature_0)
            where = np.int64(child_rows[child]) if moved_children else node
            features = row_of(x, where, buffer)
            divisor = row_divisor[where] if scaled else np.float32(1)
            for column in range(width):
                bits = draw_word(np.uint32(column), word_0, word_1)
                value = as_float(features[column])
                value = (value / divisor if scaled else value) * w
                sum_0[column] += value if np.uint32(bits & low) >= limit_0 else zero
                sum_1[column] += value if np.uint32(bits >> half) >= limit_1 else zero
        mean_0, mean_1 = out_0[row, at : at + width], out_1[row, at : at + width]
        factor_0 = scale / weight_0 if weight_0 > zero else zero
        factor_1 = scale / weight_1 if weight_1 > zero else zero
        if within:
            word_0 = draw_long_word(parent, seed_feature_0, seed_feature_1)
            word_1 = draw_long_word(parent, seed_feature_1, seed_feature_0)
            where = np.int64(parent_rows[row]) if moved_parents else parent
            features = row_of(x, where, buffer)
            divisor = row_divisor[where] if scaled else np.float32(1)
            own_0, own_1 = out_0[row, own : own + width], out_1[row, own : own + width]
            for column in range(width):
                bits = draw_word(np.uint32(column), word_0, word_1)
                value = as_float(features[column])
                value = value / divisor if scaled else value
                value_0 = value if np.uint32(bits & low) >= feature_limit else zero
                value_1 = value if np.uint32(bits >> half) >= feature_limit else zero
                sum_0[column] += value_0
                sum_1[column] += value_1
                if own >= 0:
                    own_0[column] = value_0 * scale
                    own_1[column] = value_1 * scale
        for column in range(width):
            mean_0[column] = sum_0[column] * factor_0
            mean_1[column] = sum_1[column] * factor_1
