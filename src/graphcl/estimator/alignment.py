r"""Brings the space of a model that was trained on to the space that it had before.

Training turns embeddings as a whole: distances mean the same, coordinates do not. A classifier that
was fitted to the old coordinates would fail on the new ones. So the new space is turned back by the
orthogonal matrix that fits nodes which did not change (orthogonal Procrustes), and moved to their
old mean:

.. math::
    z' = z R + b, \qquad R = \arg\min_{R^T R = I} \sum_u \| (z_u - \bar z) R - (o_u - \bar o) \|^2

:math:`o_u` is the old embedding of node u. R is :math:`U V^T`, where :math:`U S V^T` is the
singular value decomposition of :math:`\sum_u (z_u - \bar z)^T (o_u - \bar o)`. Distances between
nodes stay as the model has them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.errors import GraphError, RunError
from graphcl.kernels.features import UNIT

Rows = npt.NDArray[np.float32]
BLOCK = 4096  # rows that are turned at a time, a multiple of UNIT


@dataclass(frozen=True, eq=False)
class Alignment:
    """The turn and the move that are applied to every embedding of a model.

    Attributes:
        rotation: R, orthogonal, ``[dim, dim]`` float32.
        shift: b, ``[dim]``.
    """

    rotation: Tensor
    shift: Tensor

    def apply(self, z: Rows) -> Rows:
        """Returns embeddings turned; an array that can be written to is changed in place.

        The bits of a row do not depend on the other rows: products have a multiple of `UNIT` rows.
        """
        out = z if z.flags.writeable else np.array(z)
        for start in range(0, len(out), BLOCK):
            rows = torch.from_numpy(out[start : start + BLOCK])
            padded = rows.new_zeros(len(rows) + -len(rows) % UNIT, rows.shape[1])
            padded[: len(rows)] = rows
            rows.copy_((padded @ self.rotation + self.shift)[: len(rows)])
        return out

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that a run keeps."""
        return {"rotation": self.rotation, "shift": self.shift}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Reads what `tensors` returned; it may be forged.

        Raises:
            RunError: a tensor is missing, has another shape, or the turn is none.
        """
        rotation, shift = (tensors.get(name) for name in ("rotation", "shift"))
        if rotation is None or shift is None:
            raise RunError("it lacks rotation or shift")
        width = len(shift) if shift.ndim == 1 else -1
        if rotation.shape != (width, width) or rotation.dtype != torch.float32:
            raise RunError(f"rotation {tuple(rotation.shape)}, shift {tuple(shift.shape)}")
        if shift.dtype != torch.float32 or not bool(torch.isfinite(shift).all()):
            raise RunError("shift holds a number that is not finite")
        off = (rotation.double() @ rotation.double().T - torch.eye(width)).abs().max()
        if not float(off) < 1e-3:
            raise RunError("rotation is not orthogonal")
        return cls(rotation, shift)


def align(new: Any, old: Any) -> Alignment:
    """Returns what brings new embeddings of some nodes to their old ones.

    Args:
        new: ``[nodes, dim]``, as the model now embeds them; arrays may be mapped.
        old: the same nodes in the same order, in the space to keep.

    Raises:
        GraphError: there is no node, or the widths differ.
    """
    if not len(new) or new.shape != old.shape:
        raise GraphError(f"align: embeddings {new.shape} and {old.shape}; expected the same nodes")
    means = [_mean(one) for one in (new, old)]
    product = np.zeros((new.shape[1], new.shape[1]))
    for start in range(0, len(new), 16 * BLOCK):
        parts = (
            np.asarray(one[start : start + 16 * BLOCK], np.float64) - mean
            for one, mean in zip((new, old), means, strict=True)
        )
        first, second = parts
        product += first.T @ second
    left, _, right = np.linalg.svd(product)
    rotation = left @ right
    shift = means[1] - means[0] @ rotation
    return Alignment(
        torch.from_numpy(rotation.astype(np.float32)), torch.from_numpy(shift.astype(np.float32))
    )


def _mean(z: Any) -> npt.NDArray[np.float64]:
    total = np.zeros(z.shape[1])
    for start in range(0, len(z), 16 * BLOCK):
        total += np.asarray(z[start : start + 16 * BLOCK], np.float64).sum(axis=0)
    return total / len(z)
