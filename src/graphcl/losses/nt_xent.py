r"""NT-Xent, the paper's contrastive loss, exact over all pairs in O(N·d) memory."""

import math
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from graphcl.distributed import Share, gather_rows, sum_over
from graphcl.errors import ParameterError, require
from graphcl.kernels import nt_xent_blocked
from graphcl.kernels.nt_xent_blocked import row_log_denominators, row_pull
from graphcl.settings import check_setting

_DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))
_DENSE = "dense tensors of float16, bfloat16, float32 or float64"


@dataclass(frozen=True)
class NTXent:
    """NT-Xent with its settings, as the training loop calls it.

    Attributes:
        temperature: τ > 0.
        precision: precision of the products on a GPU; see `nt_xent`.
    """

    temperature: float = 0.5
    precision: str = "auto"
    recordable: ClassVar[bool] = True  # on a GPU a step can be recorded and replayed

    def __post_init__(self) -> None:
        check_loss_settings(self.temperature, self.precision)

    def __call__(self, h_1: Tensor, h_2: Tensor) -> Tensor:
        """Returns the loss between two views of a batch."""
        return nt_xent(h_1, h_2, self.temperature, precision=self.precision)

    def across(self, h_1: Tensor, h_2: Tensor, *, num_nodes: int, share: Share) -> Tensor:
        """Returns the loss of a batch whose rows are distributed over several processes."""
        return nt_xent_across(
            h_1,
            h_2,
            self.temperature,
            num_nodes=num_nodes,
            share=share,
            precision=self.precision,
        )

    def bound(self, loss: float, num_nodes: int) -> float | None:
        """Returns the bound on mutual information that a loss over M nodes gives."""
        return mutual_information_bound(loss, num_nodes)


def check_loss_settings(temperature: Any, precision: str) -> None:
    """Checks that NT-Xent can use a temperature and a precision."""
    if not _is_number(temperature):
        require(False, "nt_xent", "temperature", "a positive number", _kind(temperature))
    check_setting("nt_xent", "temperature", temperature)
    check_setting("nt_xent", "precision", precision)


def nt_xent(h1: Tensor, h2: Tensor, temperature: float = 0.5, *, precision: str = "auto") -> Tensor:
    r"""Normalised temperature-scaled cross entropy between two views of the same M nodes.

    With the cosine similarity :math:`s`, for each node :math:`u` of the minibatch :math:`B`
    (Eqs. loss1, lossv1 and loss2 of the paper):

    .. math::
        \mathcal L &= \frac1{|B|} \sum_{u \in B} \bigl( l_{1,2}(u) + l_{2,1}(u) \bigr) \\
        l_{i,j}(u) &= -\log \frac{e^{s(h_{u,i}, h_{u,j})/\tau}}
            {\sum_{v \in B} 1_{[v \ne u]} e^{s(h_{u,i}, h_{v,i})/\tau}
             + \sum_{v \in B} e^{s(h_{u,i}, h_{v,j})/\tau}}

    For each view of a node, its other view is the only positive and the remaining 2M − 2 views are
    negatives. The M × M matrix is computed in tiles, and only kept if it is small.

    Args:
        h1: embeddings of the first view, ``[M, d]``; row u of `h1` and of `h2` are one node.
        h2: embeddings of the second view, ``[M, d]``.
        temperature: τ > 0.
        precision: precision of the operands of the products on a CUDA GPU: ``bf16`` (the choice of
            ``auto`` there), ``tf32`` or ``float32``; sums are always float32. On a CPU, and for
            float64 inputs, the inputs' own precision is used.

    Returns:
        The loss, a scalar; differentiable once.

    Differs from the paper: the paper does not define the cosine with an all-zero row. Here it is
    0, and no gradient flows into such a row.
    """
    if not (_dense_floats(h1) and _dense_floats(h2)):
        kinds = f"{_kind(h1)} and {_kind(h2)}"
        require(False, "nt_xent", "h1 and h2", _DENSE, kinds)
    check_loss_settings(temperature, precision)
    same = h1.ndim == 2 and h1.shape == h2.shape and len(h1) > 0
    shapes = f"{tuple(h1.shape)} and {tuple(h2.shape)}"
    require(same, "nt_xent", "h1 and h2", "of one shape [M, d] with M > 0", shapes)
    tiles = _tile_precision(h1, precision)
    h = _stacked(h1, h2)
    return cast("Tensor", _NTXent.apply(h, float(temperature), tiles))  # type: ignore[no-untyped-call]


def mutual_information_bound(loss: float, num_nodes: int) -> float | None:
    r"""Returns the paper's lower bound on mutual information (Eq. bound), in nats.

    .. math:: I(h_{u,1}, h_{u,2}) \ge \log k - \mathcal L, \qquad k = 2M - 2

    :math:`\mathcal L` is the paper's loss, the sum of both directions. Van den Oord's bound holds
    for one direction, so this one holds too and is looser. Returns None for M = 1: no negatives.
    """
    return math.log(2 * num_nodes - 2) - loss if num_nodes > 1 else None


def _dense_floats(h: Any) -> bool:
    return isinstance(h, Tensor) and h.dtype in _DTYPES and h.layout == torch.strided


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, Real)


def _kind(value: Any) -> str:
    """Describes the type of `value` in a few words; a text is returned unchanged."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Tensor):
        return type(value).__name__
    layout = "" if value.layout == torch.strided else f"{value.layout} "
    return f"a tensor of {layout}{value.dtype}".replace("torch.", "")


def _tile_precision(h: Tensor, precision: str) -> Any:
    """Returns the precision of the fused kernel's tiles; None if the plain tiles are used."""
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
    """Returns both views as one tensor; without a copy if they are the halves of one already."""
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
    # Summed in float64, because squares of float32 overflow from 2e19 on and vanish below 1e-23.
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
    """Returns the loss, and what `_backward` needs: tensors, and strips if `keep`."""
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
    """Returns the gradient with respect to h, times `grad`."""
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
    return _through_norms(pulled, z, grad / (num_nodes * temperature) * inverse_norm)


def _through_norms(pulled: Tensor, z: Tensor, factor: Tensor) -> Tensor:
    """Turns the gradient with respect to z = h / ‖h‖ into that with respect to h, in place.

    `factor` includes 1 / ‖h‖.
    """
    radial = torch.linalg.vecdot(z, pulled)[:, None]
    pulled.addcmul_(z, radial, value=-1)  # the length of h does not change z
    pulled *= factor.to(z.dtype)
    return pulled


def _loss_and_gradient(h: Tensor, temperature: float, precision: Any) -> tuple[Tensor, Tensor]:
    loss, saved, strips = _forward(h, temperature, precision, keep=True)
    return loss, _backward(saved, 1.0, temperature, precision, strips)


def nt_xent_across(
    h1: Tensor,
    h2: Tensor,
    temperature: float = 0.5,
    *,
    num_nodes: int,
    share: Share,
    precision: str = "auto",
) -> Tensor:
    r"""Returns the exact `nt_xent` of the global batch, computed from each process's share of rows.

    With m = M / R rows on each of R processes and d numbers per row, a process

    - gathers the unit rows of all processes: it holds 2M·d numbers and receives (R − 1)/R of them;
    - computes its 2m rows of E = exp(s/τ) against all 2M columns, in strips, and their sums;
    - gathers the 2M sums of all rows, 4 bytes each, and adds its part of the loss;
    - in the backward pass, multiplies its strips once more: :math:`\partial L / \partial z_i` is
      :math:`\sum_j E_{ij}(r_i + r_j) z_j` minus the positive. This includes the effect of row i on
      the denominators of other rows, so nothing is sent.

    A process holds at most its 2m × 2M matrix, in strips. It computes 3 products of 2m × 2M × d (2
    if its strips are kept), R times less than one process would without the symmetry of E, which
    saves `nt_xent` a third of the work.

    Args:
        h1: embeddings of this process's rows in the first view, ``[m, d]``.
        h2: embeddings of the same rows in the second view.
        temperature: τ > 0.
        num_nodes: M, the size of the global batch; its rows are split as `Share.rows` does.
        share: this process's share. A single process computes `nt_xent`.
        precision: as for `nt_xent`. Several processes compute in the inputs' own precision and
            accept only ``auto`` and ``float32``.

    Returns:
        The loss of the global batch, the same on every process. Its gradient is that of the global
        loss with respect to this process's rows; sum the gradients of shared weights over the
        processes.
    """
    if share.world == 1:
        return nt_xent(h1, h2, temperature, precision=precision)
    check_loss_settings(temperature, precision)
    if precision in ("bf16", "tf32"):
        raise ParameterError(f"nt_xent: precision {precision!r} is for one process; use float32")
    enough = num_nodes >= share.world
    require(
        enough,
        "train",
        "the nodes of a batch",
        f"as many as the {share.world} processes",
        num_nodes,
    )
    rows = share.rows(num_nodes)
    expected = (rows.stop - rows.start, h1.shape[1])
    same = h1.shape == h2.shape == expected
    shapes = f"{tuple(h1.shape)} and {tuple(h2.shape)}"
    require(same, "nt_xent", "h1 and h2", f"of shape {expected}, this process's share", shapes)
    h = torch.stack([h1, h2], dim=1).view(-1, h1.shape[1])
    return cast("Tensor", _NTXentRows.apply(h, float(temperature), num_nodes, share))  # type: ignore[no-untyped-call]


class _NTXentRows(torch.autograd.Function):
    """The loss over all 2M rows, of which this process has 2m; a node's two views are adjacent."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, temperature: float, num_nodes: int, share: Share) -> Tensor:
        ctx.dtype = h.dtype
        h = h.float() if h.dtype in (torch.float16, torch.bfloat16) else h
        scale = inverse_norms(h)
        own_z = h * scale.to(h.dtype)
        pairs = own_z.view(len(h) // 2, 2, -1)
        z = gather_rows(pairs, share, num_nodes).view(2 * num_nodes, -1)
        start = 2 * share.rows(num_nodes).start
        own = slice(start, start + len(h))
        keep = any(ctx.needs_input_grad)
        own_logs, ctx.strips = row_log_denominators(z, own, temperature, keep=keep)
        logs = gather_rows(own_logs.view(-1, 2), share, num_nodes).view(-1)
        positives = torch.linalg.vecdot(pairs[:, 0], pairs[:, 1]).sum()
        ctx.save_for_backward(z, scale, logs)
        ctx.own, ctx.temperature, ctx.num_nodes = own, temperature, num_nodes
        return sum_over((own_logs.sum() - 2 / temperature * positives) / num_nodes, share)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        z, scale, logs = ctx.saved_tensors
        pulled = row_pull(z, ctx.own, logs, ctx.temperature, ctx.strips)
        own_z = z[ctx.own]
        # Row 2u and row 2u + 1 are each other's positive.
        others = own_z.view(len(own_z) // 2, 2, -1).flip(1).view_as(own_z)
        pulled.sub_(others, alpha=2)
        factor = grad / (ctx.num_nodes * ctx.temperature) * scale
        return _through_norms(pulled, own_z, factor).to(ctx.dtype), None, None, None
