r"""NT-Xent, the paper's contrastive loss, exact over all pairs in O(N·d) memory."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from graphcl.distributed import ALONE, Share, gather_parts, max_over, other_tables, sum_over
from graphcl.errors import ParameterError, demand, require
from graphcl.kernels.nt_xent_blocked import BlockedPairs
from graphcl.kernels.recording import ROWS, Tensors, replay
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

    def span(self, num_nodes: int) -> tuple[float, float]:
        r"""Returns the loss of good embeddings of M nodes, and of embeddings that carry nothing.

        If all similarities are equal, as they are where all embeddings coincide, the loss is
        :math:`2 \log(2M - 1)`. If the views of a node agree and those of others are orthogonal,
        it is :math:`2 \log(1 + (2M - 2) e^{-1/\tau})`.
        """
        others = 2 * num_nodes - 2
        best = 2 * math.log1p(others * math.exp(-1 / self.temperature))
        return best, 2 * math.log1p(others)


def check_loss_settings(temperature: Any, precision: str) -> None:
    """Checks that NT-Xent can use a temperature and a precision."""
    if not _is_number(temperature):
        require(False, "nt_xent", "temperature", "a positive number", _kind(temperature))
    if isinstance(temperature, Tensor) and temperature.requires_grad:
        raise ParameterError("nt_xent: no gradient flows into temperature; pass a plain number")
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

    - Under `torch.autocast` nothing changes: `precision` alone decides.
    - Under `torch.compile` it is one opaque operator, ``graphcl::nt_xent``, also with
      ``fullgraph=True``. Its forward pass computes the gradient, too.
    - Under `DistributedDataParallel` each process calls it with its own rows, and these alone are
      its negatives: the loss of M / R nodes, not of the batch. `nt_xent_across` in this module has
      the negatives of all processes; the trainings of this package use it.

    Args:
        h1: embeddings of the first view, ``[M, d]``; row u of `h1` and of `h2` are one node.
        h2: embeddings of the second view, ``[M, d]``.
        temperature: τ > 0.
        precision: precision of the operands of the products on a CUDA GPU: ``bf16`` (16 bits, the
            choice of ``auto`` there), ``tf32`` or ``float32``; sums are always float32. On a CPU,
            and for float64 inputs, the inputs' own precision is used. The errors of each are in
            docs/research/precision.md.

    Returns:
        The loss, a scalar; differentiable once. Differentiating its gradient, as a gradient penalty
        does, raises a `ParameterError`; docs/research/how-it-works.md has it in plain PyTorch.

    Differs from the paper: the paper does not define the cosine with an all-zero row. Here it is
    0, and no gradient flows into such a row.
    """
    _check_inputs(h1, h2, temperature, precision)
    same = h1.ndim == 2 and h1.shape == h2.shape and len(h1) > 0
    shapes = f"{tuple(h1.shape)} and {tuple(h2.shape)}"
    require(same, "nt_xent", "h1 and h2", "of one shape [M, d] with M > 0", shapes)
    if torch.compiler.is_compiling():
        wide = torch.float64 if h1.dtype == torch.float64 else torch.float32  # of loss and gradient
        keep = torch.is_grad_enabled() and (h1.requires_grad or h2.requires_grad)
        found = _compiled(h1.to(wide), h2.to(wide), float(temperature), precision, keep)
        return cast("Tensor", found[0])
    return _loss(h1, h2, temperature, precision, _Batch(len(h1)))


def _check_inputs(h1: Tensor, h2: Tensor, temperature: float, precision: str) -> None:
    if not (_dense_floats(h1) and _dense_floats(h2)):
        kinds = f"{_kind(h1)} and {_kind(h2)}"
        require(False, "nt_xent", "h1 and h2", _DENSE, kinds)
    check_loss_settings(temperature, precision)


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
    demand(
        precision not in ("bf16", "tf32"),
        f"nt_xent: precision {precision!r} needs a CUDA GPU and triton",
        ParameterError,
    )
    return None


@cache
def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.get_device_capability() >= (8, 0)


class _NTXent(torch.autograd.Function):
    r"""The loss over the 2M views :math:`z_i = h_i / \lVert h_i \rVert` of M nodes.

    View i has one positive, i⁺, the other view of its node. All other views are its negatives.
    The positive stays out of their sum, so that nothing is ever subtracted from a rounded sum that
    contains it:

    .. math::
        s_{ij} &= z_i^\top z_j, \qquad s^+_i = s_{i i^+} / \tau, \qquad
        \nu_i = \log \sum_{j \ne i, i^+} e^{s_{ij} / \tau} \\
        \ell_i &= \log\bigl(e^{\nu_i} + e^{s^+_i}\bigr)
            = s^+_i + \mathrm{softplus}(\nu_i - s^+_i) \\
        \mathcal L &= \frac1M \sum_i (\ell_i - s^+_i)
            = \frac1M \sum_i \mathrm{softplus}(\nu_i - s^+_i)

    With :math:`q_i = e^{\nu_i - \ell_i}`, the probability that is not the positive's, and
    :math:`P_{ij} = e^{s_{ij} / \tau - \ell_i}`, whose sum over the negatives is :math:`q_i`,

    .. math::
        M \tau \, \frac{\partial \mathcal L}{\partial z_i}
            = \sum_{j \ne i, i^+} (P_{ij} + P_{ji})\, z_j - (q_i + q_{i^+})\, z_{i^+} = g_i,
        \qquad
        M \tau \, \frac{\partial \mathcal L}{\partial h_i}
            = \frac{g_i - (z_i^\top g_i)\, z_i}{\lVert h_i \rVert} .

    The sums over negatives are computed in tiles, in the precision of their products. All that has
    to do with the positive takes O(M d) operations in float32 or better. At a low temperature, and
    with views that agree, :math:`q_i` is tiny; both terms of :math:`g_i` then are, and each keeps
    its relative precision.

    If several processes share the nodes, each computes its own rows of :math:`\nu` and g.
    :math:`P_{ij} + P_{ji}` gives the whole gradient of the loss with respect to :math:`z_i`:
    through its own denominator and through those of all other rows. So a process only needs the
    rows and the :math:`\ell_j` of the others.
    """

    @staticmethod
    def forward(
        ctx: Any, h_1: Tensor, h_2: Tensor, temperature: float, precision: Any, batch: "_Batch"
    ) -> Tensor:
        keep = any(ctx.needs_input_grad)
        ctx.gradient = keep and precision and batch.share.world == 1 and 2 * len(h_1) <= ROWS
        if ctx.gradient:
            # The launches of a small batch take longer than its arithmetic, longer still on
            # autograd's own thread. Without a recording the gradient is computed here, too.
            arguments = ((h_1, h_2), temperature, precision)
            found = replay(_loss_and_gradient, *arguments) or _loss_and_gradient(*arguments)
            ctx.save_for_backward(h_1, h_2, *found[1:])
            return found[0]
        with _own_precision(h_1):
            others = 2 * (batch.num_nodes - len(h_1))
            pairs = _pairs(h_1, h_2, temperature, precision, others=others, keep=keep)
            tables = batch.tables(pairs)
            pairs.sum_own()
            for rank, table in tables:
                pairs.sum_other(table, batch.nodes(rank))
            terms = pairs.finish_sums()
            loss = sum_over(terms.sum() / batch.num_nodes, batch.share)
        if keep:
            ctx.pairs, ctx.batch = pairs, batch
            ctx.save_for_backward(h_1, h_2, *pairs.release())
        return loss.to(torch.float64 if h_1.dtype == torch.float64 else torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h_1, h_2, *kept = ctx.saved_tensors
        with torch.no_grad():
            found = (
                tuple(d * grad for d in kept) if ctx.gradient else _pull(ctx, h_1, h_2, kept, grad)
            )
        return (*_once(found, h_1, h_2, grad), None, None, None)


def _pull(ctx: Any, h_1: Tensor, h_2: Tensor, kept: list[Tensor], grad: Tensor) -> Tensors:
    """Returns the gradients, from what the forward pass kept."""
    pairs, batch = ctx.pairs, ctx.batch
    pairs.restore(*kept)
    with _own_precision(grad):
        weights = batch.gather(pairs.weights())
        max_over(pairs.peak(), batch.share)
        tables = batch.tables(pairs)
        pairs.pull_own()
        for rank, table in tables:
            pairs.pull_other(table, weights[rank], batch.nodes(rank))
        found: Tensors = pairs.gradient(h_1, h_2, grad, batch.num_nodes)
        pairs.release()
    return found


class _Once(torch.autograd.Function):
    """The gradients as they are; a derivative of them raises an error instead of being zero."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Tensors:  # noqa: ARG004
        return tuple(gradient.clone() for gradient in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Tensor:  # noqa: ARG004
        raise ParameterError(
            "nt_xent: its gradient cannot be differentiated again, as a gradient penalty does; "
            "write the loss in plain PyTorch for that, as docs/research/how-it-works.md does"
        )


def _once(gradients: Tensors, *origins: Tensor) -> Tensors:
    """Returns gradients; where a graph of them is asked for, they depend on `origins`."""
    if not torch.is_grad_enabled():
        return gradients
    return cast("Tensors", _Once.apply(len(gradients), *gradients, *origins))  # type: ignore[no-untyped-call]


@torch.library.custom_op("graphcl::nt_xent", mutates_args=())
def _compiled(
    h_1: Tensor, h_2: Tensor, temperature: float, precision: str, keep: bool
) -> tuple[Tensor, Tensor]:
    """`_NTXent` of one process as a compiler sees it: the loss and, stacked, both gradients.

    Only compiled code calls it: a first call imports PyTorch's compiler, which takes seconds.
    """
    tiles = _tile_precision(h_1, precision)
    if not keep:
        loss = _NTXent.apply(h_1, h_2, temperature, tiles, _Batch(len(h_1)))  # type: ignore[no-untyped-call]
        return loss, h_1.new_empty(2, 0, 0)
    arguments = ((h_1, h_2), temperature, tiles)
    loss, *gradients = replay(_loss_and_gradient, *arguments) or _loss_and_gradient(*arguments)
    return loss, torch.stack(gradients)


@_compiled.register_fake
def _(h_1: Tensor, h_2: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return h_1.new_empty(()), h_1.new_empty((2, *h_1.shape) if settings[-1] else (2, 0, 0))


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    ctx.save_for_backward(*inputs[:2], output[1])
    ctx.set_materialize_grads(False)


def _scale_gradients(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    h_1, h_2, gradients = ctx.saved_tensors
    with torch.no_grad():
        found = tuple((gradients * grad).unbind())
    return (*_once(found, h_1, h_2, grad), None, None, None)


_compiled.register_autograd(_scale_gradients, setup_context=_keep_gradients)


def _loss_and_gradient(
    h: tuple[Tensor, Tensor], temperature: float, precision: Any
) -> tuple[Tensor, ...]:
    """Returns the loss of one process and its gradients, without autograd."""
    with _own_precision(h[0]):
        pairs = _pairs(*h, temperature, precision, others=0, keep=True)
        pairs.sum_own()
        loss = pairs.finish_sums().sum() / len(h[0])
        loss = loss.to(torch.float64 if h[0].dtype == torch.float64 else torch.float32)
        pairs.pull_own()
        return loss, *pairs.gradient(*h, torch.ones_like(loss), len(h[0]))


@dataclass(frozen=True)
class _Batch:
    """A batch of M nodes, shared among processes in contiguous parts."""

    num_nodes: int
    share: Share = ALONE

    def nodes(self, rank: int) -> int:
        """Returns how many of the nodes a process has."""
        rows = self.share.rows(self.num_nodes, rank)
        return int(rows.stop - rows.start)

    def tables(self, pairs: Any) -> Iterator[tuple[int, Tensor]]:
        """Returns the rows of the other processes, which come in one after the other."""
        shapes = [pairs.shape(self.nodes(rank)) for rank in range(self.share.world)]
        return other_tables(pairs.travelling(), shapes, self.share)

    def gather(self, weights: Tensor) -> list[Tensor]:
        """Returns the weights of the rows of every process."""
        if self.share.world == 1:
            return [weights]
        sizes = [self.nodes(rank) for rank in range(self.share.world)]
        parts = gather_parts(weights.view(2, -1).t(), self.share, sizes)
        return [part.t().reshape(-1) for part in parts]


def _pairs(
    h_1: Tensor, h_2: Tensor, temperature: float, precision: Any, *, others: int, keep: bool
) -> Any:
    if precision is None:
        return BlockedPairs(h_1, h_2, temperature, others=others, keep=keep)
    from graphcl.kernels.nt_xent_triton import FusedPairs

    return FusedPairs(h_1, h_2, temperature, precision)


def _own_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """Turns autocast off, which would compute the products of float32 in a narrower type."""
    kind = tensor.device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


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

    With m = M / R nodes on each of R processes and d numbers per row, a process

    - sends its 2m unit rows to all others, and receives theirs, one process after the other: the
      next table travels while this one is multiplied;
    - computes its 2m rows of E = exp(s/τ) against all 2M columns, in tiles, and their sums;
    - gathers what the denominators of all rows are, 4 bytes each, and adds its part of the loss;
    - receives the tables once more in the backward pass. The gradient of its rows includes their
      effect on the denominators of other rows, so no gradient is sent.

    It holds three tables of 2m·d numbers, and never its 2m × 2M matrix unless that is small. It
    computes 3 products of 2m × 2M × d; the symmetry of E saves a third of those among its own rows.

    Args:
        h1: embeddings of this process's rows in the first view, ``[m, d]``.
        h2: embeddings of the same rows in the second view.
        temperature: τ > 0.
        num_nodes: M, the size of the global batch; its rows are split as `Share.rows` does.
        share: this process's share. A single process computes `nt_xent`.
        precision: as for `nt_xent`.

    Returns:
        The loss of the global batch, the same on every process. Its gradient is that of the global
        loss with respect to this process's rows; sum the gradients of shared weights over the
        processes.
    """
    if share.world == 1:
        return nt_xent(h1, h2, temperature, precision=precision)
    _check_inputs(h1, h2, temperature, precision)
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
    return _loss(h1, h2, temperature, precision, _Batch(num_nodes, share))


def _loss(h1: Tensor, h2: Tensor, temperature: float, precision: str, batch: _Batch) -> Tensor:
    tiles = _tile_precision(h1, precision)
    loss = _NTXent.apply(h1, h2, float(temperature), tiles, batch)  # type: ignore[no-untyped-call]
    return cast("Tensor", loss)
