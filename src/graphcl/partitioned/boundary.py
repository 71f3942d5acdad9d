"""What the nodes of a part need from other parts: which rows, and how they arrive.

The boundary of a part are the nodes of other parts that its edges lead to. A process holds a table
with the rows of its own nodes, followed by those of its boundary, in the order of their numbers.
Each row of the boundary is asked for once, of the part that has it. Processes tell each other once
which rows they need; `fill` then sends rows and nothing else.

Rows that are known only step by step are asked for by a `Wire`. All processes take part in every
exchange, also with nothing to ask for, and in the same order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from graphcl.arrays import Array
from graphcl.distributed import Share, agree, from_rank, max_over
from graphcl.errors import StoreError, counted, is_command, option
from graphcl.graphs.relation import EDGE, NODE
from graphcl.store.header import read_store
from graphcl.store.reader import Part, PartNodes, open_part

ENTRIES = 1 << 21  # looked at at a time
ROUND_BYTES = 1 << 24  # sent by a process at a time
# And to one other: what exceeds the buffers of a socket, gloo sends before it receives. Then a wire
# carries in one direction at a time, and 8 MB take up to 1.8 times as long.
PEER_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Boundary:
    """The boundary of this process's part.

    Attributes:
        share: this process's place in its group; its rank is the number of its part.
        first: the first node of the part.
        own: number of nodes of the part.
        nodes: the nodes of the boundary, ascending; so those of one part stand side by side.
        received: how many of them each part has.
        asked: rows of this part that others need, side by side for each of them.
        sent: how many each of them needs.
    """

    share: Share
    first: int
    own: int
    nodes: Array
    received: tuple[int, ...]
    asked: Tensor
    sent: tuple[int, ...]

    @classmethod
    def of(cls, part: PartNodes, share: Share, edges: Sequence[Array]) -> Self:
        """Finds the boundary, and asks the other processes for it; all must call this.

        `part` has the nodes of a type, and `edges` are the nodes of the type that edges lead to: a
        type has a boundary along each direction of a relation in which it sends.
        """
        nodes = outside(part, edges)
        owners = np.searchsorted(nodes, part.type.starts)  # where the nodes of each part begin
        received = np.diff(owners)
        own = part.nodes.stop - part.nodes.start
        counts = torch.from_numpy(received.astype(np.int64))
        sent = exchange(counts, [1] * share.world, [1] * share.world)
        wanted = torch.from_numpy(nodes)
        asked = exchange(wanted, received.tolist(), sent.tolist()) - part.nodes.start
        fits = not len(asked) or 0 <= int(asked.min()) <= int(asked.max()) < own
        lacking = "" if fits else f"part {part.number}: is asked for nodes that it lacks"
        agree(lacking, share, StoreError)
        sizes = tuple(received.tolist()), tuple(sent.tolist())
        return cls(share, part.nodes.start, own, nodes, sizes[0], asked, sizes[1])

    @property
    def rows(self) -> int:
        """Rows of a table: own nodes and boundary."""
        return self.own + len(self.nodes)

    def local(self, indices: Array) -> Array:
        """Returns the rows of the table that hold some nodes, own or of the boundary."""
        rows = indices.astype(np.int64) - self.first
        others = (rows < 0) | (rows >= self.own)
        rows[others] = self.own + np.searchsorted(self.nodes, indices[others])
        return rows

    def fill(self, table: Tensor) -> None:
        """Completes a table: sends own rows to those that need them, and receives the boundary.

        Rows travel in rounds of about `ROUND_BYTES`, so little is held beside the table.
        """
        most = max_over(torch.tensor([max(*self.received, *self.sent)]), self.share)
        row_bytes = table.element_size() * table.shape[1]
        height = max(1, min(PEER_BYTES, ROUND_BYTES // self.share.world) // row_bytes)
        _exchange_in_rounds(
            lambda some: table[self.asked[some]],
            table[self.own :],
            self.sent,
            self.received,
            most=int(most),
            height=height,
        )


def outside(part: PartNodes, edges: Sequence[Array]) -> Array:
    """Returns the nodes of other parts that some edges lead to, ascending."""
    own, found, held = part.nodes, [np.empty(0, dtype=np.int64)], 0
    places = [(array, start) for array in edges for start in range(0, len(array), ENTRIES)]
    for array, start in places:
        block = np.asarray(array[start : start + ENTRIES], dtype=np.int64)
        others = _distinct(block[(block < own.start) | (block >= own.stop)])
        found.append(others)
        held += len(others)
        if held > 2 * len(found[0]) + ENTRIES:  # merged now and then, each node is held twice
            found = [_distinct(np.concatenate(found))]
            held = len(found[0])
    return _distinct(np.concatenate(found))


def _distinct(nodes: Array) -> Array:
    """Returns numbers ascending, each once; sorts `nodes` in place.

    `np.unique` would put them into a hash table, which takes five times their memory.
    """
    nodes.sort()
    new = np.ones(len(nodes), dtype=np.bool_)
    np.not_equal(nodes[1:], nodes[:-1], out=new[1:])
    return nodes[new]


def open_any_part(path: Path, number: int) -> Part:
    """Maps one part; the type and the relation of a plain graph have their usual names.

    Raises:
        StoreError: the part is missing, damaged or of another build.
    """
    part = open_part(path, number)
    store = part.store
    if not store.is_plain:
        return part
    (nodes,), (edges,) = part.nodes.values(), part.edges.values()
    (relation,) = store.relations.values()
    relations = {EDGE: replace(relation, key=EDGE)}
    plain = replace(store, types={NODE: nodes.type}, relations=relations)
    return Part(plain, number, {NODE: nodes}, {(EDGE, False): edges})


def open_own_part(path: Path, share: Share) -> Part:
    """Opens and checks the part of this process; all processes of the group call it together.

    Raises:
        StoreError: in every process, if a part of any process is missing, damaged or of another
            build than that of the first process, or there are more or fewer processes than parts.
    """
    problem, part = "", None
    try:
        count = len(read_store(path))
        if count != share.world:
            start = f"pass {option('processes', count)}" if is_command() else "start as many"
            raise StoreError(
                f"{path}: has {count} parts, one for each process; got "
                f"{counted(share.world, 'process', 'processes')}: {start}"
            )
        part = open_any_part(path, share.rank)
        part.check()
    except (StoreError, OSError) as error:
        problem = str(error)
    build = from_rank((part.store.build if part else "").encode(), share).decode()
    if part is not None and build and part.store.build != build:
        problem = f"{path}: process {share.rank} has the build {part.store.build}, not {build}"
    agree(problem, share, StoreError)
    assert part is not None
    return part


def exchange(rows: Tensor, giving: list[int], taking: list[int], group: Any = None) -> Tensor:
    """Sends some rows to each process and returns those that they send, in the order of ranks."""
    received = rows.new_empty(sum(taking), *rows.shape[1:])
    if len(giving) == 1:
        return received.copy_(rows)
    dist.all_to_all_single(received, rows.contiguous(), taking, giving, group=group)
    return received


def exchange_in_rounds(
    rows: Tensor, giving: list[int], taking: list[int], most: int, group: Any = None
) -> Tensor:
    """Does what `exchange` does, with at most `PEER_BYTES` to one process at a time.

    `most` is the largest number of rows that any process gives to any other; all must know it.
    """
    size = rows.element_size() * int(np.prod(rows.shape[1:], dtype=np.int64))
    height = max(1, PEER_BYTES // max(1, size))
    if len(giving) == 1 or most <= height:
        return exchange(rows, giving, taking, group)
    received = rows.new_empty(sum(taking), *rows.shape[1:])
    _exchange_in_rounds(
        rows.__getitem__, received, giving, taking, most=most, height=height, group=group
    )
    return received


def _exchange_in_rounds(
    give: Callable[[slice], Tensor],
    into: Tensor,
    giving: Sequence[int],
    taking: Sequence[int],
    *,
    most: int,
    height: int,
    group: Any = None,
) -> None:
    """Fills a table with the rows that others send, at most `height` to one process at a time.

    `give` returns a range of the rows that this process sends.
    """
    for begin in range(0, most, height):
        gives, takes = _slices(giving, begin, height), _slices(taking, begin, height)
        sent, received = ([some.stop - some.start for some in part] for part in (gives, takes))
        found = exchange(torch.cat([give(some) for some in gives]), sent, received, group)
        for some, rows in zip(takes, torch.split(found, received), strict=True):
            into[some] = rows


def _slices(counts: Sequence[int], begin: int, height: int) -> list[slice]:
    """Returns where the rows of a round are, for each process, if all stand side by side."""
    firsts = (np.cumsum(counts) - counts).tolist()
    return [
        slice(first + min(begin, count), first + min(begin + height, count))
        for first, count in zip(firsts, counts, strict=True)
    ]


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
        # A table without rows may have strides of 0, which cannot be read as bytes.
        plain = rows.contiguous() if len(rows) else rows.new_empty(rows.shape)
        content = plain.view(len(rows), width).view(torch.uint8)
        received = exchange_in_rounds(content, giving, taking, most, self._group)
        return received.view(rows.dtype).view(sum(taking), *rows.shape[1:])
