"""Where sampled subgraphs come from: the neighbours of nodes, and their features.

A graph is asked two questions: which neighbours a draw picks for some nodes along one direction of
a relation, and what the features of some nodes are. `LocalTopology` answers from tensors or mapped
arrays of this process; `graphcl.partitioned.topology` answers for a graph in parts.

The tables of a tree are here as well: a level holds the tree nodes that are equally far from their
seed nodes, in one table for each type. Every node has the same number of sampled children in each
direction in which its type receives, and the children of one parent are side by side, so a mean
over them is a reshape.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from graphcl.distributed import Share
from graphcl.errors import StoreError
from graphcl.graphs.schema import EDGES, Direction
from graphcl.kernels.counter import Keys, Seed, step_key
from graphcl.kernels.neighbours import DAMAGED, EdgeWeights, draw_neighbours
from graphcl.kernels.stored_features import StoredFeatures

CPU = torch.device("cpu")
Features = Tensor | StoredFeatures
Seeds = Mapping[str, Tensor]  # the nodes of a batch by type, in the order of their places


class Drawn(NamedTuple):
    """Neighbours that were drawn for n nodes in one direction.

    Attributes:
        children: their numbers, ``[n · fan_out]`` int64, those of a node side by side.
        degree: of each node, ``[n]`` int64.
        relative: without replacement, the weight of each child relative to the mean of its
            parent's edges; None if edges have no weights.
        vectors: the vectors of the edges, ``[n · fan_out, width]``; None without them.
    """

    children: Tensor
    degree: Tensor
    relative: Tensor | None = None
    vectors: Tensor | None = None


@dataclass(frozen=True, eq=False)
class SampledDirection:
    """One direction of a relation, by receiver, ready to be sampled.

    Attributes:
        direction: which one.
        indptr: row pointers of the receivers.
        indices: the senders.
        fan_out: children per node.
        replace: whether a neighbour can be drawn twice.
        undirected: whether both directions are one.
        weights: of weighted edges, prepared; else without any.
        vectors: of the edges, or None.
        entries: the row of `vectors` of each entry; None: its number.
        first: the number of the first receiver, if there are only some.
    """

    direction: Direction
    indptr: Tensor
    indices: Tensor
    fan_out: int
    replace: bool = True
    undirected: bool = True
    weights: EdgeWeights = EdgeWeights()  # noqa: RUF009 (frozen)
    vectors: Tensor | None = None
    entries: Tensor | None = None
    first: int = 0

    @property
    def within(self) -> bool:
        """Whether receivers and senders are of one type; a node is in its own mean then."""
        return self.direction.sender == self.direction.receiver

    @property
    def order(self) -> int:
        """Which end of an edge counts first in its draws: see `graphcl.kernels.counter.Draws`."""
        return 0 if self.undirected else 2 if self.direction.backwards else 1

    @property
    def width(self) -> int:
        """The width of the edges' vectors; 0 without them."""
        return 0 if self.vectors is None else self.vectors.shape[1]

    def key(self, seed: Seed, hop: int) -> Keys:
        """Returns the stream of the children in a hop."""
        relation, backwards = self.direction[:2]
        named = () if self.direction == EDGES else (*relation, int(backwards))
        return step_key(seed, "neighbours", hop, *named)

    def draw(self, nodes: Tensor, ranks: Tensor, key: Keys) -> Drawn:
        """Draws `fan_out` senders of each of `nodes`.

        Args:
            nodes: receivers, ``[n]``, which may repeat.
            ranks: the number of each in its level of the whole batch; decides its draws.
            key: the stream of draws.

        Raises:
            StoreError: the edges are damaged; a store may have been written to since its check.
        """
        found = draw_neighbours(
            self.indptr,
            self.indices,
            nodes,
            ranks,
            fan_out=self.fan_out,
            key=key,
            replace=self.replace,
            limits=self.weights.limits,
            first=self.first,
            within=self.within,
        )
        on_cpu = not nodes.is_cuda and len(found.entries) > 0
        if on_cpu and int(found.entries.min()) == DAMAGED:
            raise StoreError(f"relation {':'.join(self.direction.relation)}: its edges are damaged")
        relative, vectors = self.weights.relative, self.vectors
        if relative is None and vectors is None:
            return Drawn(found.nodes, found.degree)
        places = found.entries.clamp(min=0)
        if relative is not None:
            relative = relative[places] if len(relative) else torch.ones(len(places))
        if vectors is not None and len(vectors):
            vectors = vectors[places if self.entries is None else self.entries[places]]
        elif vectors is not None:
            vectors = vectors.new_zeros(len(places), vectors.shape[1])
        return Drawn(found.nodes, found.degree, relative, vectors)

    def child_weights(self, drawn: Drawn) -> Tensor:
        r"""Returns the weight of each child, ``[n · fan_out]``; 0 marks an empty slot.

        A child represents :math:`d / f` of its parent's d neighbours, and this is its weight; of
        weighted edges without replacement, times its relative weight.
        """
        degree, fan_out = drawn.degree[:, None].float(), self.fan_out
        each = (degree if self.replace else degree.clamp(min=fan_out)) / fan_out
        if not self.replace:
            slots = torch.arange(fan_out, device=degree.device)
            each = torch.where(slots < degree, each, 0.0)
        weight = each.expand(-1, fan_out).reshape(-1)
        return weight if drawn.relative is None else weight * drawn.relative


@dataclass
class Children:
    """The sampled children of a type's nodes in one direction.

    Attributes:
        edges: which one.
        nodes: their numbers, ``[n · fan_out]``.
        weight: of each in its parent's mean, in which the parent itself has weight 1 or 0.
        vectors: of their edges, or None.
        rows: where their features are, if not at their numbers.
    """

    edges: SampledDirection
    nodes: Tensor
    weight: Tensor
    vectors: Tensor | None = None
    rows: Tensor | None = None


@dataclass
class TreeNodes:
    """The nodes of one type in a level.

    Attributes:
        nodes: their numbers, ``[n]``.
        places: the place in the batch of the seed node of each; views depend on it.
        ranks: the number of each in this level of the whole batch, which decides its children. One
            of several processes has some of the nodes.
        total: how many nodes the level of the whole batch has.
        children: in each direction in which the type receives.
        rows: where their features are, if not at their numbers.
    """

    nodes: Tensor
    places: Tensor
    ranks: Tensor
    total: int
    children: list[Children] = field(default_factory=list)
    rows: Tensor | None = None


Level = dict[str, TreeNodes]
Tree = list[Level]  # the seed nodes, their children, and so on; the last ones' children are leaves


class Traffic(NamedTuple):
    """What the processes of a graph in parts sent each other.

    Attributes:
        sent_bytes: for a step, on average, over all processes.
        cache_hits: the share of the needed rows of other parts that were in a cache; None where no
            such row was needed.
    """

    sent_bytes: float
    cache_hits: float | None


class Topology(Protocol):
    """What a source of sampled batches asks of a graph."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of nodes of each type."""

    @property
    def into(self) -> Mapping[str, Sequence[SampledDirection]]:
        """For each type, the directions in which it receives."""

    def own_places(self, seeds: Seeds, share: Share) -> slice | Tensor:
        """Returns the places of the seed nodes that are this process's own."""

    def draw(self, edges: SampledDirection, nodes: Tensor, ranks: Tensor, key: Keys) -> Drawn:
        """Draws children, as `SampledDirection.draw` does with the edges of all nodes."""

    def features(self, tree: Tree) -> Mapping[str, Features]:
        """Returns the features of a tree's nodes by type; sets where they are, if not in order."""

    def expect(self, trees: Iterable[Tree]) -> None:
        """Is told what the coming steps need, if it `remembers`."""

    @property
    def remembers(self) -> bool:
        """Whether it can keep rows between steps."""

    @property
    def device(self) -> torch.device:
        """Where it draws."""

    def traffic(self) -> "Traffic | None":
        """Returns what processes sent each other since the last call; None if nothing travels."""


@dataclass(frozen=True, eq=False)
class LocalTopology:
    """A graph in the memory of this process, mapped by it, or on its GPU.

    Attributes:
        x: features of each type, on the device of the edges; on a CPU also a table in the type of
            a store.
        into: for each type, the directions in which it receives.
        device: where all of these are.
    """

    x: Mapping[str, Features]
    into: Mapping[str, Sequence[SampledDirection]]
    device: torch.device = CPU

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of nodes of each type."""
        return {name: table.shape[0] for name, table in self.x.items()}

    def own_places(self, seeds: Seeds, share: Share) -> slice:
        """Returns an equal share of the places."""
        return share.rows(sum(map(len, seeds.values())))

    def draw(self, edges: SampledDirection, nodes: Tensor, ranks: Tensor, key: Keys) -> Drawn:
        """Draws children."""
        return edges.draw(nodes, ranks, key)

    def features(self, tree: Tree) -> Mapping[str, Features]:  # noqa: ARG002 (it has all rows)
        """Returns the features of all nodes."""
        return self.x

    remembers = False

    def expect(self, trees: Iterable[Tree]) -> None:
        """Keeps nothing: all is here."""

    def traffic(self) -> None:
        """Returns nothing: nothing travels."""
