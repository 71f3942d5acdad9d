"""How the processes of a graph in parts ask each other for rows, and how many bytes they send.

All of them take part in every exchange, also with nothing to ask for, and in the same order.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from graphcl.distributed import Share
from graphcl.partitioned.boundary import exchange_in_rounds

Answer = Callable[[Tensor], tuple[Tensor, ...]]


class Wire:
    """A line to the other processes, apart from the one on which they train.

    A thread may so fetch the rows of the next step while gradients are summed.

    Args:
        share: this process's place in the group; its rank is the number of its part.
        patience: how long to wait for others; that of the group if None.

    Attributes:
        sent: bytes that this process has sent to others so far.
    """

    def __init__(self, share: Share, patience: timedelta | None = None) -> None:
        self.share, self.sent = share, 0
        self._group: Any = None
        if share.world > 1:
            self._group = dist.new_group(backend="gloo", timeout=patience)

    def ask(self, wanted: Tensor, counts: list[int], answer: Answer) -> tuple[Tensor, ...]:
        """Returns the rows that the others answer with, in the order of what is asked.

        Args:
            wanted: what is asked, a row for each question; those to one process side by side.
            counts: how many questions go to each process.
            answer: called with the questions of the others to this process; returns tables with a
                row for each of them.
        """
        mine = torch.tensor([[count, max(counts)] for count in counts], dtype=torch.int64)
        found = self._send(mine, [1] * len(counts), [1] * len(counts))
        theirs, most = found[:, 0].tolist(), int(found[:, 1].max())
        asked = self._send(wanted, counts, theirs, most)
        return tuple(self._send(rows, theirs, counts, most) for rows in answer(asked))

    def ask_lists(self, wanted: Tensor, counts: list[int], answer: Answer) -> tuple[Tensor, ...]:
        """Like `ask`, where the answer to a question is a list.

        `answer` returns the length of each list, and then tables with the lists one after another;
        the same is returned.
        """
        mine = torch.tensor(counts, dtype=torch.int64)
        theirs = self._send(mine, [1] * len(counts), [1] * len(counts)).tolist()
        lengths, *tables = answer(self._send(wanted, counts, theirs))
        received = self._send(lengths, theirs, counts)
        giving = [int(one.sum()) for one in torch.split(lengths, theirs)]
        taking = [int(one.sum()) for one in torch.split(received, counts)]
        return received, *(self._send(table, giving, taking) for table in tables)

    def most(self, number: int) -> int:
        """Returns the largest of the numbers that the processes pass."""
        found = torch.tensor([number])
        if self.share.world > 1:
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._group)
        return int(found)

    def _send(self, rows: Tensor, giving: list[int], taking: list[int], most: int = 0) -> Tensor:
        """Sends rows, in rounds where all know the `most` of them; returns those of the others."""
        width = int(np.prod(rows.shape[1:], dtype=np.int64))
        each = width * rows.element_size()
        self.sent += (sum(giving) - giving[self.share.rank]) * each
        # As bytes, which every version of the transport knows.
        content = rows.contiguous().view(len(rows), width).view(torch.uint8)
        received = exchange_in_rounds(content, giving, taking, most, self._group)
        return received.view(rows.dtype).view(sum(taking), *rows.shape[1:])
