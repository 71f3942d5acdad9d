"""The features of a graph in parts: how they are scaled, and those of types without any.

It is what `graphcl.graphs.tensors.prepare` and `graphcl.graphs.filling` do with a whole
graph. The rows of neighbours that a mean needs are fetched in blocks; they may be in any part.

A row of another part is asked for once, and some are kept. Rows travel as a store has them, as
float32 or float16, with their divisors where features are scaled by row; sparse rows travel
dense. So a loop that reads them finds what one process on the whole graph finds.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphcl.arrays import Integers
from graphcl.distributed import Share
from graphcl.errors import StoreError, demand
from graphcl.graphs.filling import filled_table, filling_order
from graphcl.graphs.scaling import Rows, Scaling, TableScaling, fit_tables
from graphcl.graphs.schema import Direction, Schema, TypeSchema
from graphcl.graphs.tensors import feature_tensor, stored_features, table_scaling
from graphcl.kernels.adjacency import csr_matmul
from graphcl.kernels.buffers import borrow
from graphcl.kernels.features import SparseFeatures
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.partitioned.boundary import Wire
from graphcl.store.partition import entries_of, row_blocks
from graphcl.store.reader import Edges, Part, PartNodes

ROUND_BYTES = 1 << 24  # of rows that a process asks for at a time when it fills its cache
READERS = 8  # threads that wait for a disk at the same time
SLOT_BYTES = 16  # beside a row that is kept: its number, and where it is
HELD = 1 << 22  # numbers of rows that are counted at a time
CPU = torch.device("cpu")


def require_own(part: PartNodes, nodes: Tensor) -> None:
    """Refuses to answer for nodes that a part does not have.

    Raises:
        StoreError: another process has asked for some; its parts are not these.
    """
    start, stop = part.nodes.start, part.nodes.stop
    demand(
        not len(nodes) or start <= int(nodes.min()) <= int(nodes.max()) < stop,
        f"part {part.number}: is asked for nodes that it lacks",
        StoreError,
    )


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
        needed: how many rows of other parts were needed so far.
        kept: how many of them were at hand.
        row_bytes: what a row takes.
        sparse: whether the part has the rows sparse; they travel dense.
    """

    def __init__(
        self,
        part: PartNodes,
        wire: Wire,
        scaling: TableScaling,
        *,
        cache_bytes: int = 0,
        from_disk: bool = False,
    ) -> None:
        self._part, self._wire = part, wire
        self.needed = self.kept = 0
        self._readers = ThreadPoolExecutor(READERS, "graphcl-reader") if from_disk else None
        own = part_features(part, scaling)
        self._sparse: Any = None
        if isinstance(own, SparseFeatures):
            parts = (own.values.numpy(), own.indices.numpy(), own.indptr.numpy())
            self._sparse = scipy.sparse.csr_array(parts, shape=own.shape)
            own = StoredFeatures(torch.empty(0, part.type.num_features))
        self._own, self.sparse = own, self._sparse is not None
        known = {name: getattr(own, name) for name in ("values", "row_divisor", "word_divisor")}
        self._names = [name for name, one in known.items() if one is not None]
        self._columns = [known[name] for name in self._names]
        width = own.shape[1] * own.values.element_size()
        self.row_bytes = width + 4 * (len(self._columns) - 1)  # a divisor is a float32
        self._kept = np.empty(0, np.int64)  # the numbers of the rows that are kept, ascending
        self._slots = np.empty(0, np.int64)  # where each of them is
        self.capacity = 0
        if wire.share.world > 1:
            others = part.type.num_nodes - (part.nodes.stop - part.nodes.start)
            self.capacity = min(cache_bytes // (self.row_bytes + SLOT_BYTES), others)
        self._cache = [one.new_empty((self.capacity, *one.shape[1:])) for one in self._columns]

    def fetch(self, nodes: Integers) -> StoredFeatures:
        """Returns the rows of some nodes, each given once, as a table in their order.

        All processes call it together.
        """
        first, stop = self._part.nodes.start, self._part.nodes.stop
        tables = [one.new_empty((len(nodes), *one.shape[1:])) for one in self._columns]
        mine = (nodes >= first) & (nodes < stop)
        self._put(tables, mine, self._take(torch.from_numpy(nodes[mine] - first)))
        far = np.flatnonzero(~mine)
        self.needed += len(far)
        if len(self._kept):
            at = np.searchsorted(self._kept, nodes[far]).clip(max=len(self._kept) - 1)
            here = self._kept[at] == nodes[far]
            slots = torch.from_numpy(self._slots[at[here]])
            self._put(tables, far[here], [one[slots] for one in self._cache])
            self.kept += int(here.sum())
            far = far[~here]
        if self._wire.share.world > 1:
            self._put(tables, *self._asked(nodes, far))
        columns = dict(zip(self._names, tables, strict=True))
        return replace(self._own, **columns)

    def keep(self, nodes: Integers) -> None:
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
            self._put(self._cache, slots[which], found)
        kept = np.concatenate([self._kept[stays], new])
        order = np.argsort(kept)
        self._kept = kept[order]
        self._slots = np.concatenate([self._slots[stays], slots])[order]

    def _asked(self, nodes: Integers, which: Integers) -> tuple[Integers, Sequence[Tensor]]:
        """Asks for some of the nodes; returns these in another order, and their rows in it."""
        owners = self._part.type.owner(nodes[which])
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
            return [torch.from_numpy(self._sparse[rows.numpy()].toarray())]
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
    def _put(tables: Sequence[Tensor], which: Integers, rows: Sequence[Tensor]) -> None:
        places = torch.from_numpy(np.flatnonzero(which) if which.dtype == np.bool_ else which)
        for table, found in zip(tables, rows, strict=True):
            table[places] = found


def part_features(part: PartNodes, scaling: TableScaling) -> StoredFeatures | SparseFeatures:
    """Returns the features of a part's nodes, scaled as they are read, or sparse."""
    x = part.fields["x"]
    if not scipy.sparse.issparse(x):
        return stored_features(x, feature_scaling=scaling)
    found = feature_tensor(x, device=CPU, feature_scaling=scaling)
    return found if isinstance(found, SparseFeatures) else StoredFeatures(found)


class Needed:
    """Counts which rows of other parts steps need; `own` are the numbers of the own rows."""

    def __init__(self, own: slice) -> None:
        self._own = own
        self._known, self._times = np.empty(0, np.int64), np.empty(0, np.int64)
        self._held: list[Integers] = []

    def add(self, distinct: Integers) -> None:
        """Counts what a step needs."""
        self._held.append(distinct[(distinct < self._own.start) | (distinct >= self._own.stop)])
        if sum(map(len, self._held)) > HELD:
            self._count()

    def most(self, capacity: int) -> Integers:
        """Returns what is needed most often, at least twice, ascending, at most `capacity`."""
        self._count()
        often = self._times >= 2  # a row that is needed once is fetched once, kept or not
        known, times = self._known[often], self._times[often]
        if len(known) > capacity:
            most = np.argsort(-times, kind="stable")[:capacity]
            known = np.sort(known[most])
        return known

    def _count(self) -> None:
        rows = np.concatenate([self._known, *self._held])
        times = np.append(self._times, np.ones(len(rows) - len(self._times)))
        every, where = np.unique(rows, return_inverse=True)
        total = np.bincount(where, weights=times, minlength=len(every))
        self._known, self._times, self._held = every, total.astype(np.int64), []


@dataclass(frozen=True, eq=False)
class PreparedPart:
    """A part of a graph whose types all have features.

    Attributes:
        part: as it is on disk.
        nodes: the part's rows of each type; types without features have got some.
        schema: of the whole graph, and which features were not given.
        scaling: how features are to be scaled; they are not yet, but for those that were filled in
            from neighbours, which stay as they are.
    """

    part: Part
    nodes: Mapping[str, PartNodes]
    schema: Schema
    scaling: Scaling

    def scaling_of(self, name: str) -> TableScaling:
        """Returns how the features of a type are scaled."""
        return table_scaling(self.scaling, name)

    def edges(self, channel: Direction) -> Edges | None:
        """Returns the part's edges in one direction of a relation; None if the graph has none."""
        return self.part.edges.get((channel.relation, channel.backwards))


def prepare_part(part: Part, feature_scaling: str, share: Share, wire: Wire) -> PreparedPart:
    """Decides how the features of a graph to train on are scaled, and fills in what is missing.

    All processes of the group call it together, each with its part. The statistics are those of the
    whole graph, to the order of sums in float64.
    """

    def fit(own: PartNodes) -> TableScaling:
        return fit_tables(feature_scaling, [Rows(own.fields["x"])], share)

    # In one order: all processes look at a table together.
    nodes = {name: fit(own) for name, own in part.nodes.items() if own.type.num_features}
    edges = {
        key: fit_tables("auto", [Rows(part.edges[key, False]["edge_features"])], share)
        for key, relation in part.store.relations.items()
        if feature_scaling == "auto" and relation.num_edge_features and relation.num_edges
    }
    schema = Schema.of(part.store)
    return _filled(PreparedPart(part, part.nodes, schema, Scaling(nodes, edges)), wire, fit)


def prepare_part_like(part: Part, schema: Schema, scaling: Scaling, wire: Wire) -> PreparedPart:
    """Prepares a part as the graph that was trained on.

    Raises:
        GraphError: it has types, relations or features that the other one had not.
    """
    schema.check_like(str(part.store.path), Schema.of(part.store))
    return _filled(PreparedPart(part, part.nodes, schema, scaling), wire)


def _filled(
    prepared: PreparedPart, wire: Wire, fit: Callable[[PartNodes], TableScaling] | None = None
) -> PreparedPart:
    """Gives features to types without any; `fit` decides how those of structure are scaled.

    With `fit`, the schema says what was filled; without, it is that of the training.
    """
    part, nodes, widths = prepared.part, dict(prepared.nodes), prepared.schema.widths
    scalings, filled = dict(prepared.scaling.nodes), dict[str, str]()

    def mean(channel: Direction) -> Any:
        edges, sender = prepared.edges(channel), channel.sender
        if edges is None:
            return None
        table = FeatureRows(nodes[sender], wire, scalings.get(sender, "none"))
        return _mean(edges, table, wire, weight=edges.get("edge_weight"))

    def degrees(channel: Direction) -> Any:
        edges = prepared.edges(channel)
        if edges is None:
            return None
        relation = part.store.relations[channel.relation]
        backwards = channel.backwards if relation.undirected else not channel.backwards
        sent = np.diff(part.edges[channel.relation, backwards]["indptr"])
        own = with_features(part.nodes[channel.sender], sent.astype(np.float32)[:, None])
        table = FeatureRows(own, wire, "none")
        around = _mean(edges, table, wire, of=lambda x: x.double().log1p())
        return np.log1p(np.diff(edges["indptr"])), np.asarray(around)[:, 0]

    for name, how, channels in filling_order(prepared.schema):
        filled[name] = how
        if name in nodes:
            count = int(nodes[name].nodes.stop - nodes[name].nodes.start)
            x = filled_table(how, channels, count, mean=mean, degrees=degrees, widths=widths)
            nodes[name], widths[name] = with_features(nodes[name], x), int(x.shape[1])
            if fit is not None and how == "structure":
                scalings[name] = fit(nodes[name])
    schema = prepared.schema
    if fit is not None:
        types = [TypeSchema(name, widths[name], filled.get(name, "given")) for name in widths]
        schema = Schema(tuple(types), schema.relations)
    return PreparedPart(part, nodes, schema, replace(prepared.scaling, nodes=scalings))


def with_features(part: PartNodes, x: Any) -> PartNodes:
    """Returns a part with other features."""
    kind = replace(part.type, num_features=int(x.shape[1]))
    return replace(part, type=kind, fields={**part.fields, "x": x})


def _mean(
    edges: Edges,
    table: FeatureRows,
    wire: Wire,
    *,
    weight: Any = None,
    of: Callable[[Tensor], Tensor] = lambda x: x,
) -> Any:
    """Returns the mean of a table over the neighbours of the part's nodes; 0 without neighbours.

    It is sparse if the table is. All processes call it together. `of` is taken of rows first.
    """
    blocks = list(row_blocks(edges["indptr"], table.row_bytes))
    found: list[Any] = []
    for place in range(wire.most(max(1, len(blocks)))):
        rows = blocks[place] if place < len(blocks) else slice(0, 0)
        local, span = entries_of(edges["indptr"], rows)
        senders, at = np.unique(np.asarray(edges["indices"][span]), return_inverse=True)
        x = of(table.fetch(senders).rows(slice(None)))
        pointers, places = torch.from_numpy(local), torch.from_numpy(at)
        values = x.new_ones(len(at)) if weight is None else borrow(weight)[span]
        sums = torch.segment_reduce(values, "sum", offsets=pointers, axis=0)[:, None]
        mean = csr_matmul(pointers, places, values, x)
        mean *= torch.where(sums > 0, 1 / torch.where(sums > 0, sums, 1), 0)
        found.append(scipy.sparse.csr_array(mean.numpy()) if table.sparse else mean.numpy())
    return scipy.sparse.vstack(found, format="csr") if table.sparse else np.concatenate(found)
