"""Rows of features that lie in several parts: each is asked for once, and some are kept.

Rows travel as a store has them (float32, float16 or int8), with their divisors where features are
scaled by row; sparse rows travel dense. So a loop that reads them finds what one process on the
whole graph finds.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.distributed import Share, any_of
from graphcl.errors import StoreError
from graphcl.graphs.column_facts import Rows
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import NODE
from graphcl.graphs.scaling import Scaling, scale_columns
from graphcl.graphs.tensors import feature_tensor, stored_features
from graphcl.kernels.features import SparseFeatures
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.partitioned.wire import Wire
from graphcl.store.reader import PartNodes

ROUND_BYTES = 1 << 24  # of rows that a process asks for at a time when it fills its cache
READERS = 8  # threads that wait for a disk at the same time
SLOT_BYTES = 16  # beside a row that is kept: its number, and where it is
HELD = 1 << 22  # numbers of rows that are counted at a time
CPU = torch.device("cpu")
IntArray = npt.NDArray[np.int64]


def fit_parts_scaling(feature_scaling: str, part: PartNodes, share: Share) -> Scaling:
    """Returns how features are scaled; for ``auto``, all processes look at their rows together.

    The statistics are those of the whole graph, to the order of sums in float64.
    """
    if feature_scaling != "auto":
        return feature_scaling
    return scale_columns([Rows(part.fields["x"])], share)


def part_graph(part: PartNodes) -> Graph:
    """Returns the nodes of a part as a graph without edges, which may lead out of it."""
    x = part.fields["x"]
    return Graph({NODE: Nodes(NODE, int(x.shape[0]), x)}, {}, part.fields["name"])


def require_own(part: PartNodes, nodes: Tensor) -> None:
    """Refuses to answer for nodes that a part does not have.

    Raises:
        StoreError: another process has asked for some; its parts are not these.
    """
    start, stop = part.nodes.start, part.nodes.stop
    if len(nodes) and not start <= int(nodes.min()) <= int(nodes.max()) < stop:
        raise StoreError(f"part {part.number}: is asked for nodes that it lacks")


@dataclass
class Counts:
    """What was needed of other parts: rows in all, and how many of them were at hand."""

    needed: int = 0
    kept: int = 0


class FeatureRows:
    """The features of all nodes: own ones from the part, others from a cache or by asking.

    All processes of the group make one together.

    Args:
        part: this process's own part.
        wire: to the others.
        scaling: as in training.
        cache_bytes: how much memory rows of other parts may take between steps.
        from_disk: memory may not hold the own rows; several threads then read them, because a disk
            answers many questions in the time of one.

    Attributes:
        counts: since it was made.
        row_bytes: what a row takes.
        sparse: whether the part has the rows sparse; they travel dense.
    """

    def __init__(
        self,
        part: PartNodes,
        wire: Wire,
        scaling: Scaling,
        *,
        cache_bytes: int = 0,
        from_disk: bool = False,
    ) -> None:
        self._part, self._wire, self.counts = part, wire, Counts()
        self._readers = ThreadPoolExecutor(READERS, "graphcl-reader") if from_disk else None
        graph = part_graph(part)
        self._sparse: SparseFeatures | None = None
        if hasattr(part.fields["x"], "indptr"):
            table = feature_tensor(graph, device=CPU, feature_scaling=scaling)
            if isinstance(table, SparseFeatures):
                self._sparse = table
            own = StoredFeatures(torch.empty(0, part.parts.num_features))
            if isinstance(table, Tensor):
                own = StoredFeatures(table)
        else:
            own = stored_features(graph, feature_scaling=scaling)
            # Of int8 features, a part may have rows with a scale of their own, and another none.
            if any_of(own.row_divisor is not None, wire.share) and own.row_divisor is None:
                own = replace(own, row_divisor=torch.ones(len(own.values)))
        self._own, self.sparse = own, self._sparse is not None
        self._columns = [
            one for one in (own.values, own.row_divisor, own.word_divisor) if one is not None
        ]
        width = own.shape[1] * own.values.element_size()
        self.row_bytes = width + 4 * (len(self._columns) - 1)  # a divisor is a float32
        self._kept = np.empty(0, np.int64)  # the numbers of the rows that are kept, ascending
        self._slots = np.empty(0, np.int64)  # where each of them is
        self.capacity = 0
        if wire.share.world > 1:
            others = part.parts.num_nodes - (part.nodes.stop - part.nodes.start)
            self.capacity = min(cache_bytes // (self.row_bytes + SLOT_BYTES), others)
        self._cache = [one.new_empty((self.capacity, *one.shape[1:])) for one in self._columns]

    def fetch(self, nodes: IntArray) -> StoredFeatures:
        """Returns the rows of some nodes, each given once, as a table in their order.

        All processes call it together.
        """
        first, stop = self._part.nodes.start, self._part.nodes.stop
        tables = [one.new_empty((len(nodes), *one.shape[1:])) for one in self._columns]
        mine = (nodes >= first) & (nodes < stop)
        self._put(tables, mine, self._take(torch.from_numpy(nodes[mine] - first)))
        far = np.flatnonzero(~mine)
        self.counts.needed += len(far)
        if len(self._kept):
            at = np.searchsorted(self._kept, nodes[far]).clip(max=len(self._kept) - 1)
            here = self._kept[at] == nodes[far]
            slots = torch.from_numpy(self._slots[at[here]])
            self._put(tables, far[here], [one[slots] for one in self._cache])
            self.counts.kept += int(here.sum())
            far = far[~here]
        if self._wire.share.world > 1:
            self._put(tables, *self._asked(nodes, far))
        return self._table(tables)

    def keep(self, nodes: IntArray) -> None:
        """Fills the cache with the rows of these nodes, at most as many as fit; ascending.

        What is there and stays is not asked for again. All processes call it together.
        """
        stays = np.isin(self._kept, nodes, assume_unique=True)
        free = np.setdiff1d(np.arange(self.capacity), self._slots[stays], assume_unique=True)
        new = np.setdiff1d(nodes, self._kept, assume_unique=True)[: len(free)]
        slots = free[: len(new)]
        height = max(1, ROUND_BYTES // self.row_bytes)
        for start in range(0, self._wire.most(len(new)), height):
            some = np.arange(start, min(start + height, len(new)))
            which, found = self._asked(new, some)
            places = torch.from_numpy(slots[which])
            for table, rows in zip(self._cache, found, strict=True):
                table[places] = rows
        kept = np.concatenate([self._kept[stays], new])
        order = np.argsort(kept)
        self._kept = kept[order]
        self._slots = np.concatenate([self._slots[stays], slots])[order]

    def _asked(self, nodes: IntArray, which: IntArray) -> tuple[IntArray, Sequence[Tensor]]:
        """Asks for some of the nodes; returns these in another order, and their rows in it."""
        owners = self._part.parts.owner(nodes[which])
        order = np.argsort(owners, kind="stable")
        which = which[order]
        counts = np.bincount(owners, minlength=self._wire.share.world).tolist()
        first = self._part.nodes.start

        def answer(asked: Tensor) -> tuple[Tensor, ...]:
            require_own(self._part, asked)
            return tuple(self._take(asked - first))

        return which, self._wire.ask(torch.from_numpy(nodes[which]), counts, answer)

    def _take(self, rows: Tensor) -> list[Tensor]:
        if self._sparse is not None:
            return [_dense(self._sparse, rows)]
        return [self._read(one, rows) for one in self._columns]

    def _read(self, table: Tensor, rows: Tensor) -> Tensor:
        if self._readers is None or len(rows) < READERS:
            return table.index_select(0, rows)
        found = table.new_empty((len(rows), *table.shape[1:]))

        def read(some: Tensor, to: Tensor) -> None:
            torch.index_select(table, 0, some, out=to)

        list(self._readers.map(read, rows.chunk(READERS), found.chunk(READERS)))
        return found

    @staticmethod
    def _put(tables: Sequence[Tensor], which: IntArray, rows: Sequence[Tensor]) -> None:
        places = torch.from_numpy(np.flatnonzero(which) if which.dtype == np.bool_ else which)
        for table, found in zip(tables, rows, strict=True):
            table[places] = found

    def _table(self, tables: list[Tensor]) -> StoredFeatures:
        given = iter(tables)
        values = next(given)
        divisor = None if self._own.row_divisor is None else next(given)
        words = None if self._own.word_divisor is None else next(given)
        return replace(self._own, values=values, row_divisor=divisor, word_divisor=words)


def _dense(table: SparseFeatures, rows: Tensor) -> Tensor:
    """Returns some rows of a sparse table."""
    starts, lengths = table.indptr[rows], table.indptr[rows + 1] - table.indptr[rows]
    at = torch.repeat_interleave(torch.arange(len(rows)), lengths)
    before = (lengths.cumsum(0) - lengths)[at]
    entries = starts[at] + torch.arange(len(at)) - before
    dense = torch.zeros(len(rows), table.shape[1])
    dense[at, table.indices[entries]] = table.values[entries]
    return dense


class Needed:
    """Counts which rows of other parts steps need; `own` are the numbers of the own rows."""

    def __init__(self, own: slice) -> None:
        self._own = own
        self._known, self._times = np.empty(0, np.int64), np.empty(0, np.int64)
        self._held: list[IntArray] = []

    def add(self, distinct: IntArray) -> None:
        """Counts what a step needs."""
        self._held.append(distinct[(distinct < self._own.start) | (distinct >= self._own.stop)])
        if sum(map(len, self._held)) > HELD:
            self._count()

    def most(self, capacity: int) -> IntArray:
        """Returns what is needed most often, at least twice, ascending, at most `capacity`."""
        self._count()
        often = self._times >= 2  # a row that is needed once is fetched once, kept or not
        known, times = self._known[often], self._times[often]
        if len(known) > capacity:
            most = np.argsort(-times, kind="stable")[:capacity]
            known = np.sort(known[most])
        return known

    def _count(self) -> None:
        more = np.concatenate([np.empty(0, np.int64), *self._held])
        new, counts = np.unique(more, return_counts=True)
        every, where = np.unique(np.concatenate([self._known, new]), return_inverse=True)
        sums = np.concatenate([self._times, counts])
        total = np.bincount(where, weights=sums, minlength=len(every))
        self._known, self._times, self._held = every, total.astype(np.int64), []
