r"""NT-Xent over a batch whose rows lie in several processes: negatives cross them."""

from typing import Any, cast

import torch
from torch import Tensor

from graphcl.distributed import Share, gather_rows, sum_over
from graphcl.errors import ParameterError, require
from graphcl.kernels.nt_xent_rows import row_log_denominators, row_pull
from graphcl.losses.nt_xent import PRECISIONS, inverse_norms, nt_xent


def nt_xent_distributed(
    h1: Tensor,
    h2: Tensor,
    temperature: float = 0.5,
    *,
    num_nodes: int,
    share: Share,
    precision: str = "auto",
) -> Tensor:
    r"""`nt_xent` of the global batch, exact, from each process's share of its rows.

    With m = M / R rows on each of R processes and d numbers per row, a process

    - gathers the unit rows of all: 2M·d numbers held, (R − 1)/R of them received;
    - computes its 2m rows of E = exp(s/τ) against all 2M columns, in strips, and their sums;
    - gathers the 2M sums of all rows, 4 bytes each, and adds its part of the loss;
    - backward, multiplies its strips once more: :math:`\partial L / \partial z_i` is
      :math:`\sum_j E_{ij}(r_i + r_j) z_j` less the positive, which holds what row i does in the
      denominators of others too. Nothing is sent.

    Nothing larger than 2m × 2M is held, and that in strips. Work is 3 products of 2m × 2M × d a
    process (2 where its strips are kept), which is R times less than one process would do without
    symmetry: `nt_xent` alone saves a third by it.

    Args:
        h1: embeddings of this process's rows in the first view, ``[m, d]``.
        h2: likewise in the second view.
        temperature: τ > 0.
        num_nodes: M, the size of the global batch; its rows are split as `Share.rows` does.
        share: this process's place. One process alone computes `nt_xent`.
        precision: of `nt_xent`. Several processes compute in the inputs' own precision: `auto` and
            ``float32`` only.

    Returns:
        The loss of the global batch, the same on every process. Its gradient is that of the global
        loss with respect to this process's rows; gradients of shared weights must be summed.
    """
    if share.world == 1:
        return nt_xent(h1, h2, temperature, precision=precision)
    require(temperature > 0, "nt_xent", "temperature", "positive", temperature)
    require(precision in PRECISIONS, "nt_xent", "precision", f"one of {PRECISIONS}", precision)
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
    """The loss over all 2M rows, of which 2m are here; the two views of a node are neighbours."""

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
        # Through z = h / ‖h‖: remove the radial part, divide by the norm.
        radial = torch.linalg.vecdot(own_z, pulled)[:, None]
        pulled.addcmul_(own_z, radial, value=-1)
        pulled *= (grad / (ctx.num_nodes * ctx.temperature) * scale).to(z.dtype)
        return pulled.to(ctx.dtype), None, None, None
