r"""NT-Xent, the paper's contrastive loss, exact over all pairs in O(N·d) memory."""

import math
from functools import cache
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor

from graphcl.errors import ParameterError, require
from graphcl.kernels import nt_xent_blocked

PRECISIONS = ("auto", "float32", "tf32", "bf16")
_DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
_DENSE = "dense tensors of float16, bfloat16, float32 or float64"


def nt_xent(h1: Tensor, h2: Tensor, temperature: float = 0.5, *, precision: str = "auto") -> Tensor:
    r"""Normalised temperature-scaled cross entropy between two views of the same M nodes.

    With the cosine similarity :math:`s`, for each node :math:`u` of the minibatch :math:`B`
    (Eqs. loss1, lossv1 and loss2 of the paper):

    .. math::
        \mathcal L &= \frac1{|B|} \sum_{u \in B} \bigl( l_{1,2}(u) + l_{2,1}(u) \bigr) \\
        l_{i,j}(u) &= -\log \frac{e^{s(h_{u,i}, h_{u,j})/\tau}}
            {\sum_{v \in B} 1_{[v \ne u]} e^{s(h_{u,i}, h_{v,i})/\tau}
             + \sum_{v \in B} e^{s(h_{u,i}, h_{v,j})/\tau}}

    Each view of a node meets its other view as the only positive and the remaining 2M − 2 views
    as negatives. No M × M matrix is held, except in tiles and where it is small.

    Args:
        h1: embeddings of the first view, ``[M, d]``; row u of `h1` and of `h2` are one node.
        h2: embeddings of the second view, ``[M, d]``.
        temperature: τ > 0.
        precision: of the operands of the products on a CUDA GPU: ``bf16`` (what ``auto`` takes
            there), ``tf32`` or ``float32``; sums are float32 always. A CPU, or float64 inputs,
            compute in the inputs' own precision.

    Returns:
        The loss, a scalar; differentiable once.

    Differs from the paper: the cosine with an all-zero row, which the paper leaves undefined, is
    0, and no gradient flows into such a row.
    """
    if not (_dense_floats(h1) and _dense_floats(h2)):
        kinds = f"{_kind(h1)} and {_kind(h2)}"
        require(False, "nt_xent", "h1 and h2", _DENSE, kinds)
    if not _is_number(temperature):
        require(False, "nt_xent", "temperature", "a positive number", _kind(temperature))
    require(temperature > 0, "nt_xent", "temperature", "positive", temperature)
    same = h1.ndim == 2 and h1.shape == h2.shape and len(h1) > 0
    shapes = f"{tuple(h1.shape)} and {tuple(h2.shape)}"
    require(same, "nt_xent", "h1 and h2", "of one shape [M, d] with M > 0", shapes)
    tiles = _tile_precision(h1, precision)
    h = _stacked(h1, h2)
    return cast("Tensor", _NTXent.apply(h, float(temperature), tiles))  # type: ignore[no-untyped-call]


def mutual_information_bound(loss: float, num_nodes: int) -> float | None:
    r"""Returns the paper's lower bound on mutual information (Eq. bound), in nats.

    .. math:: I(h_{u,1}, h_{u,2}) \ge \log k - \mathcal L, \qquad k = 2M - 2

    :math:`\mathcal L` is taken as the paper defines it, the sum of both directions; van den Oord's
    bound holds for one of them, so this one holds too and is looser. None for M = 1: no negatives.
    """
    return math.log(2 * num_nodes - 2) - loss if num_nodes > 1 else None


def _dense_floats(h: Any) -> bool:
    return isinstance(h, Tensor) and h.dtype in _DTYPES and h.layout == torch.strided


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, Real)


def _kind(value: Any) -> str:
    """Returns what kind of thing `value` is, in a few words; a text as it is."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Tensor):
        return type(value).__name__
    layout = "" if value.layout == torch.strided else f"{value.layout} "
    return f"a tensor of {layout}{value.dtype}".replace("torch.", "")


def _tile_precision(h: Tensor, precision: str) -> Any:
    """Returns the precision of the fused kernel's tiles, or None where the plain tiles serve."""
    require(precision in PRECISIONS, "nt_xent", "precision", f"one of {PRECISIONS}", precision)
    if h.is_cuda and h.dtype != torch.float64 and _has_triton():
        return "bf16" if precision == "auto" else precision
    if precision in ("bf16", "tf32"):
        raise ParameterError(f"nt_xent: precision {precision!r} needs a CUDA GPU and triton")
    return None


@cache
def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.get_device_capability() >= (8, 0)


def _stacked(h1: Tensor, h2: Tensor) -> Tensor:
    """Returns both views as one tensor; without a copy where they are its halves already."""
    whole = h1._base
    halves = (
        whole is not None
        and whole is h2._base
        and whole.shape == (2 * len(h1), h1.shape[1])
        and all(part.is_contiguous() for part in (whole, h1, h2))
        and h1.storage_offset() == whole.storage_offset()
        and h2.storage_offset() == h1.storage_offset() + h1.numel()
    )
    return cast("Tensor", whole) if halves else torch.cat([h1, h2])


def inverse_norms(h: Tensor) -> Tensor:
    """Returns 1 / ‖h‖ by row, ``[n, 1]`` in float64; 0 for a zero row."""
    # Summed in float64: squares of float32 overflow at 2e19 and vanish at 1e-23.
    norm: Tensor = torch.linalg.vector_norm(h, dim=1, keepdim=True, dtype=torch.float64)
    return norm.reciprocal().masked_fill_(norm < torch.finfo(h.dtype).tiny, 0)


class _NTXent(torch.autograd.Function):
    r"""The loss over the 2M stacked rows, with the log-denominators :math:`\ell_i`.

    .. math:: \mathcal L = \frac1M \Bigl( \sum_{i=1}^{2M} \ell_i
        - \frac2\tau \sum_{u} z_{u,1}^\top z_{u,2} \Bigr)
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, temperature: float, precision: Any) -> Tensor:
        ctx.dtype = h.dtype
        h = h.float() if h.dtype in (torch.float16, torch.bfloat16) else h
        ctx.temperature, ctx.precision = temperature, precision
        ctx.recorded = False
        if precision and any(ctx.needs_input_grad):
            from graphcl.kernels import recording

            both = recording.replay(_loss_and_gradient, h, temperature, precision)
            if both is not None:
                ctx.recorded = True
                ctx.save_for_backward(both[1])
                return both[0]
        loss, saved, ctx.strips = _forward(
            h, temperature, precision, keep=any(ctx.needs_input_grad)
        )
        ctx.save_for_backward(*saved)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if ctx.recorded:
            gradient = ctx.saved_tensors[0] * grad
        else:
            gradient = _backward(
                ctx.saved_tensors, grad, ctx.temperature, ctx.precision, ctx.strips
            )
        return gradient.to(ctx.dtype), None, None


def _forward(
    h: Tensor, temperature: float, precision: Any, *, keep: bool
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], list[Any]]:
    """Returns the loss, and what `_backward` needs."""
    inverse_norm = inverse_norms(h)
    z = h * inverse_norm.to(h.dtype)
    strips: list[Any] = []
    if precision:
        from graphcl.kernels import nt_xent_triton

        logs = nt_xent_triton.log_denominators(z, temperature, precision=precision)
    else:
        logs, strips = nt_xent_blocked.log_denominators(z, temperature, keep=keep)
    num_nodes = len(h) // 2
    positives = torch.linalg.vecdot(z[:num_nodes], z[num_nodes:]).sum()
    loss = (logs.sum() - 2 / temperature * positives) / num_nodes
    return loss, (z, inverse_norm, logs), strips


def _backward(
    saved: tuple[Tensor, ...],
    grad: Tensor | float,
    temperature: float,
    precision: Any,
    strips: list[Any],
) -> Tensor:
    """Returns the gradient in h, times `grad`."""
    z, inverse_norm, logs = saved
    num_nodes = len(z) // 2
    if precision:
        from graphcl.kernels import nt_xent_triton

        pulled = nt_xent_triton.pull(z, logs, temperature, precision=precision)
    else:
        pulled = nt_xent_blocked.pull(z, logs, temperature, strips)
    # Row u and row M + u are each other's positive.
    pulled[:num_nodes].sub_(z[num_nodes:], alpha=2)
    pulled[num_nodes:].sub_(z[:num_nodes], alpha=2)
    # Through z = h / ‖h‖: remove the radial part, divide by the norm.
    radial = torch.linalg.vecdot(z, pulled)[:, None]
    pulled.addcmul_(z, radial, value=-1)
    pulled *= (grad / (num_nodes * temperature) * inverse_norm).to(z.dtype)
    return pulled


def _loss_and_gradient(h: Tensor, temperature: float, precision: Any) -> tuple[Tensor, Tensor]:
    loss, saved, strips = _forward(h, temperature, precision, keep=True)
    return loss, _backward(saved, 1.0, temperature, precision, strips)
