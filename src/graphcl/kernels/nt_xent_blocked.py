r"""The sums of NT-Xent over pairs of unit rows, in strips, on any device.

`graphcl.losses.nt_xent` derives them. A process has the rows :math:`z_i` of its nodes, the first
views and then the second ones. With :math:`s_{ij} = z_i^\top z_j`, and the sums over all j but i
and its positive,

.. math::
    \nu_i = \log \sum_j e^{s_{ij}/\tau}, \qquad
    g_i = \sum_j (P_{ij} + P_{ji})\, z_j, \quad P_{ij} = e^{s_{ij}/\tau - \ell_i} .

Over pairs of its own rows, :math:`s` is symmetric. So a strip has some rows, and only the columns
from its first row on: it contributes to its own rows and, transposed, to the rows after them. A
strip of own rows and the rows of another process contributes to the own rows only; the pair's
positive is never in it.

Cosines are bounded, so :math:`E_{ij} = e^{s_{ij}/\tau}` stays within the range of floats for all
but tiny temperatures. With :math:`r_i = e^{-\ell_i}` the backward pass then needs one exponential
per pair: :math:`P_{ij} + P_{ji} = E_{ij}(r_i + r_j)`.
"""

import math

import torch
from torch import Tensor

from graphcl.arrays import blocks
from graphcl.kernels.buffers import block_height

STRIP_ROWS = 512  # large enough for fast products, small enough to stay in cache between passes
CUDA_STRIP_ROWS = 4096  # on a GPU without Triton: enough work to hide the launches
KEPT_BYTES = 256 * 2**20  # strips up to this total are kept for the backward pass, else recomputed
STRIP_ELEMENTS = 1 << 26  # a strip of 10^6 columns is 64 rows high: 256 MB in float32


def exponent_fits(dtype: torch.dtype, temperature: float) -> bool:
    """Returns whether ``exp(±1 / temperature)`` and sums of many are normal numbers of `dtype`."""
    return 1 / temperature < math.log(torch.finfo(dtype).max) - 40


def inverse_norms(h: Tensor) -> Tensor:
    """Returns 1 / ‖h‖ by row, ``[n, 1]`` in float64; 0 for a zero row."""
    # Summed in float64, because squares of float32 overflow from 2e19 on and vanish below 1e-23.
    norm: Tensor = torch.linalg.vector_norm(h, dim=1, keepdim=True, dtype=torch.float64)
    return norm.reciprocal().masked_fill_(norm < torch.finfo(h.dtype).tiny, 0)


class BlockedPairs:
    """A process's part of the loss: its own rows against themselves, then against other rows.

    Call `sum_own`, `sum_other` for each other process, `finish_sums`; then, for the gradient,
    `pull_own`, `pull_other` in the same order, `gradient`.

    Args:
        h_1: embeddings of the first view, ``[m, d]``.
        h_2: embeddings of the second view.
        temperature: τ.
        others: how many rows the other processes have, together.
        keep: whether a backward pass will follow.
    """

    def __init__(
        self, h_1: Tensor, h_2: Tensor, temperature: float, *, others: int = 0, keep: bool = False
    ) -> None:
        dtype = torch.float32 if h_1.dtype in (torch.float16, torch.bfloat16) else h_1.dtype
        self.nodes, self._temperature = len(h_1), temperature
        self.rows = torch.empty(2 * len(h_1), h_1.shape[1], dtype=dtype, device=h_1.device)
        scales = []
        for part, h in zip(self.rows.chunk(2), (h_1, h_2), strict=True):
            scales.append(inverse_norms(h.to(dtype)))
            torch.mul(h, scales[-1].to(dtype), out=part)
        self._inverse_norm = torch.cat(scales)
        self._positives = torch.linalg.vecdot(*self.rows.chunk(2)).double() / temperature
        self._fits = exponent_fits(dtype, temperature)
        kept = sum(self._area(rows) for rows in self._strips()) + 2 * self.nodes * others
        self._keep = keep and self._fits and kept * self.rows.element_size() <= KEPT_BYTES
        self._kept: list[Tensor] = []
        shape = 2 * self.nodes
        self._sums = self.rows.new_full((shape,), 0.0 if self._fits else -torch.inf)
        self._weights = self.rows.new_empty(shape)  # r_i; ℓ_i where E would overflow
        self._pulls = self.rows.new_empty(self.nodes)
        self._pulled = self.rows.new_empty(0)

    def travelling(self) -> Tensor:
        """Returns what other processes need of this one's rows."""
        return self.rows

    def shape(self, nodes: int) -> tuple[int, int]:
        """Returns the shape of `travelling` of a process with so many nodes."""
        return 2 * nodes, self.rows.shape[1]

    def release(self) -> tuple[Tensor, ...]:
        """Returns the tensors that the backward pass needs, and forgets all but the strips."""
        kept = (self.rows, self._inverse_norm, self._weights, self._pulls)
        self._sums = self._pulled = self._positives = self.rows.new_empty(0)
        self.rows = self._inverse_norm = self._weights = self._pulls = self._sums
        return kept

    def restore(self, *kept: Tensor) -> None:
        """Puts back what `release` returned."""
        self.rows, self._inverse_norm, self._weights, self._pulls = kept

    def sum_own(self) -> None:
        """Adds the pairs of own rows to the sums."""
        z, sums = self.rows, self._sums
        buffer = z.new_empty(0 if self._keep else self._area(self._strips()[0]))
        for rows in self._strips():
            if not self._fits:
                sums[rows] = self._logits(rows).logsumexp(1)
                continue
            strip = self._exponentials(rows, buffer)
            sums[rows] += strip.sum(1)
            sums[rows.stop :] += strip[:, rows.stop - rows.start :].sum(0)
            if self._keep:
                self._kept.append(strip)

    def sum_other(self, other: Tensor, nodes: int) -> None:
        """Adds the pairs of own rows and those of another process, ``[2 · nodes, d]``."""
        assert len(other) == 2 * nodes
        for rows in self._other_strips(other):
            strip = self._scaled(rows) @ other.t()
            if self._fits:
                self._sums[rows] += strip.exp_().sum(1)
            else:
                torch.logaddexp(self._sums[rows], strip.logsumexp(1), out=self._sums[rows])
            if self._keep:
                self._kept.append(strip)

    def finish_sums(self) -> Tensor:
        """Returns the loss of each own node, both directions, ``[m]`` in float64."""
        sums = self._sums.double()
        logs = (sums.log() if self._fits else sums).view(2, -1)
        gap = logs - self._positives  # ν − s⁺; −∞ without negatives
        terms = -torch.nn.functional.logsigmoid(-gap)  # softplus(ν − s⁺), for any size
        denominators = self._positives + terms  # ℓ
        weights = denominators.neg().exp() if self._fits else denominators
        self._weights.copy_(weights.view(-1))
        self._pulls.copy_(gap.sigmoid().sum(0))
        return terms.sum(0)

    def weights(self) -> Tensor:
        """Returns what other processes need beside `travelling` for their gradient, ``[2m]``."""
        return self._weights

    def peak(self) -> Tensor:
        """Returns the largest pull of a positive, which only 16 bits need."""
        return self._pulls.max()

    def pull_own(self) -> None:
        """Begins the gradient with the pairs of own rows."""
        z, w = self.rows, self._weights
        self._pulled = pulled = torch.zeros_like(z)
        buffer = z.new_empty(0 if self._kept else self._area(self._strips()[0]))
        for rows in self._strips():
            if not self._fits:
                torch.mm(_both(self._logits(rows), w[rows], w), z, out=pulled[rows])
                continue
            strip = self._kept.pop(0) if self._kept else self._exponentials(rows, buffer)
            strip *= w[rows, None] + w[rows.start :]  # P + Pᵀ
            pulled[rows].addmm_(strip, z[rows.start :])
            beyond = strip[:, rows.stop - rows.start :]
            pulled[rows.stop :].addmm_(beyond.t(), z[rows])

    def pull_other(self, other: Tensor, weights: Tensor, nodes: int) -> None:
        """Adds the pairs of own rows and those of another process, with its `weights`."""
        assert len(other) == len(weights) == 2 * nodes
        for rows in self._other_strips(other):
            if self._kept:
                strip = self._kept.pop(0)
            else:
                strip = self._scaled(rows) @ other.t()
                strip = strip.exp_() if self._fits else strip
            if self._fits:
                strip *= self._weights[rows, None] + weights
            else:
                strip = _both(strip, self._weights[rows], weights)
            self._pulled[rows].addmm_(strip, other)

    def gradient(
        self, h_1: Tensor, h_2: Tensor, grad: Tensor | float, num_nodes: int
    ) -> tuple[Tensor, Tensor]:
        """Returns the gradients of ``grad ·`` the mean over all nodes with respect to both views.

        It uses up what the pulls have left. The pull of a row's positive is added here, and the
        gradient with respect to z = h / ‖h‖ becomes that with respect to h.
        """
        z, pulled, m = self.rows, self._pulled, self.nodes
        pulled[:m].addcmul_(z[m:], self._pulls[:, None], value=-1)
        pulled[m:].addcmul_(z[:m], self._pulls[:, None], value=-1)
        radial = torch.linalg.vecdot(z, pulled)[:, None]
        pulled.addcmul_(z, radial, value=-1)  # the length of h does not change z
        pulled *= (grad / (num_nodes * self._temperature) * self._inverse_norm).to(z.dtype)
        self._pulled = z.new_empty(0)
        return pulled[:m].to(h_1.dtype), pulled[m:].to(h_2.dtype)

    def _strips(self) -> list[slice]:
        height = block_height(CUDA_STRIP_ROWS) if self.rows.is_cuda else STRIP_ROWS
        return list(blocks(2 * self.nodes, height))

    def _other_strips(self, other: Tensor) -> list[slice]:
        height = CUDA_STRIP_ROWS if self.rows.is_cuda else STRIP_ROWS
        return list(blocks(2 * self.nodes, min(height, max(1, STRIP_ELEMENTS // len(other)))))

    def _area(self, rows: slice) -> int:
        return int((rows.stop - rows.start) * (2 * self.nodes - rows.start))

    def _scaled(self, rows: slice) -> Tensor:
        return self.rows[rows] / self._temperature

    def _exponentials(self, rows: slice, buffer: Tensor) -> Tensor:
        """Returns a strip of E, 0 where a row meets itself or its positive; in `buffer` if it fits.

        Row k of the strip meets itself in column k, and its positive in column k + m or k − m.
        """
        shape = (rows.stop - rows.start, 2 * self.nodes - rows.start)
        size = math.prod(shape)
        out = buffer[:size].view(shape) if buffer.numel() >= size else self.rows.new_empty(shape)
        strip = torch.mm(self._scaled(rows), self.rows[rows.start :].t(), out=out).exp_()
        strip.fill_diagonal_(0)
        for offset in (self.nodes, -self.nodes):
            strip.diagonal(offset).zero_()
        return strip

    def _logits(self, rows: slice) -> Tensor:
        """Returns rows of s/τ, −∞ where E would be 0, for temperatures at which it overflows."""
        logits = self._scaled(rows) @ self.rows.t()
        index = torch.arange(rows.start, rows.stop, device=logits.device)
        logits[index - rows.start, index] = -torch.inf
        logits[index - rows.start, (index + self.nodes) % (2 * self.nodes)] = -torch.inf
        return logits


def _both(logits: Tensor, of_rows: Tensor, of_columns: Tensor) -> Tensor:
    """Returns P + Pᵀ from the ℓ of rows and columns, also where E overflows; eats `logits`."""
    both = (logits - of_rows[:, None]).exp_()
    both += logits.sub_(of_columns).exp_()
    return both
