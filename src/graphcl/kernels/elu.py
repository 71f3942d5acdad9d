r"""ELU in place, and ELU with the sum over children that follows it on a sampled tree.

`elu_` avoids `expm1`, which on a CPU takes longer than the rest of an ELU.

`pooled_elu` is the first layer on a tree's deepest level, whose rows are only used in the means of
their parents.

.. math:: p_u = \sum_{c \in \mathrm{children}(u)} w_c\, \sigma(z_c W), \qquad \sigma = \mathrm{ELU}

This level has nine tenths of a tree's rows. On a CPU it is computed in blocks that stay in cache
between product, ELU and sum. The backward pass does its three steps in blocks too, so the gradient
of the whole level is never stored.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import elu

from graphcl.arrays import blocks
from graphcl.kernels.buffers import block_height, empty

BLOCK_ELEMENTS = 1 << 17  # half a megabyte: a block and its exponentials fit into a core's cache
BLOCK_ROWS = 4096  # 8 MB of activations at dim 512


def elu_(h: Tensor) -> Tensor:
    """Replaces the values of `h` by their ELU and returns `h`; not differentiable.

    On a CPU it computes max(h, exp(min(h, 0)) − 1), whose error is at most one rounding of 1.
    """
    if h.device.type != "cpu" or torch.compiler.is_exporting():
        return elu(h, inplace=True)
    flat = h.view(-1)
    room = flat.new_empty(min(BLOCK_ELEMENTS, len(flat)))
    for block in torch.split(flat, BLOCK_ELEMENTS):
        below = torch.clamp(block, max=0, out=room[: len(block)]).exp_().sub_(1)
        torch.maximum(block, below, out=block)
    return h


def pooled_elu(inputs: Tensor, weight: Tensor, child_weights: Tensor) -> Tensor:
    """Returns the module's p, ``[parents, dim]``; differentiable with respect to `weight` only.

    Args:
        inputs: z, ``[parents · fan_out, width]``, the children of a parent side by side.
        weight: W, ``[width, dim]``.
        child_weights: w, ``[parents, 1, fan_out]``.
    """
    return cast("Tensor", _PooledElu.apply(inputs, weight, child_weights))  # type: ignore[no-untyped-call]


class _PooledElu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, child_weights: Tensor) -> Tensor:
        fan_out, dim = child_weights.shape[2], weight.shape[1]
        h = empty((len(inputs), dim), inputs)
        pooled = inputs.new_empty(len(child_weights), 1, dim)
        for parents, rows in _blocks(child_weights):
            block = torch.mm(inputs[rows], weight, out=h[rows])
            elu(block, inplace=True)
            children = block.view(-1, fan_out, dim)
            torch.bmm(child_weights[parents], children, out=pooled[parents])
        ctx.save_for_backward(inputs, h, child_weights)
        return pooled[:, 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None]:
        inputs, h, child_weights = ctx.saved_tensors
        of_weight = inputs.new_zeros(inputs.shape[1], h.shape[1])
        for parents, rows in _blocks(child_weights):
            slope = torch.bmm(child_weights[parents].mT, grad[parents, None]).view(-1, h.shape[1])
            # In place, and from the result: σ' = σ + 1 below zero.
            torch.ops.aten.elu_backward.grad_input(
                slope, 1.0, 1.0, 1.0, True, h[rows], grad_input=slope
            )
            of_weight.addmm_(inputs[rows].T, slope)
        return None, of_weight, None


def _blocks(child_weights: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yields slices of parents and of their children; one block on a GPU with enough memory."""
    parents, _, fan_out = child_weights.shape
    height = block_height(parents) if child_weights.is_cuda else max(1, BLOCK_ROWS // fan_out)
    for rows in blocks(parents, height):
        yield rows, slice(rows.start * fan_out, rows.stop * fan_out)
