r"""Features for node types that have none, by one rule.

- If a neighbouring type has features, a node gets the mean of what its neighbours have, and an
  author is what she wrote: one block of columns for each direction of a relation whose senders have
  features. A type whose neighbours have got features this way comes next, and so on.
- If no type that can be reached has features, a node gets its structure: for each direction of a
  relation, :math:`\log(1 + d_u)` and the mean of :math:`\log(1 + d_v)` over its neighbours, where d
  counts edges of that relation.

The result is a function of the graph alone. It needs no label and nothing random.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.graphs.graph import Graph
from graphcl.graphs.schema import Direction, Schema


def fill_features(
    graph: Graph,
    like: Schema | None = None,
    *,
    scale: Callable[[str, Any], Any] = lambda _, x: x,
) -> tuple[Graph, Schema]:
    """Returns the graph with features for every type, and its schema, which says how.

    Args:
        graph: any graph.
        like: the schema of the graph that was trained on; `graph` then gets the columns that it
            had, with zeros for relations that `graph` lacks.
        scale: called with the name of a type and its features, returns them scaled. Means are taken
            of scaled features. The graph keeps features as they were given.
    """
    plan = like or Schema.of(graph)
    widths = {
        one.name: one.num_features for one in plan.types if like is not None or one.num_features
    }
    filled: dict[str, str] = {}
    done = {name: one for name, one in graph.nodes.items() if one.x is not None}
    senders: dict[str, Any] = {}  # features that means are taken of

    def sender(name: str) -> Any:
        if name not in senders:
            senders[name] = scale(name, done[name].x)
        return senders[name]

    def mean(channel: Direction) -> Any:
        matrix = _matrix(graph, channel)
        if matrix is None:
            return None
        sums = np.asarray(matrix.sum(axis=1)).reshape(-1)
        inverse = np.divide(1, sums, out=np.zeros_like(sums), where=sums > 0)
        found = scipy.sparse.diags_array(inverse).tocsr() @ (matrix @ sender(channel.sender))
        return found.astype(np.float32)

    def degrees(channel: Direction) -> Any:
        matrix = _matrix(graph, channel)
        if matrix is None:
            return None
        matrix.data = np.ones_like(matrix.data)
        received = np.diff(matrix.indptr)
        sent = np.log1p(np.bincount(matrix.indices, minlength=matrix.shape[1]))
        return np.log1p(received), (matrix @ sent) / np.maximum(received, 1)

    for name, how, channels in filling_order(plan):
        filled[name] = how
        if name in graph.nodes:
            nodes = graph.nodes[name]
            x = filled_table(
                how, channels, nodes.num_nodes, mean=mean, degrees=degrees, widths=widths
            )
            if how == "neighbours":
                senders[name] = x
            done[name] = replace(nodes, x=x)
            widths[name] = done[name].num_features
    if filled:
        graph = replace(graph, nodes={name: done[name] for name in graph.nodes})
    return graph, like or Schema.of(graph, filled)


def filling_order(plan: Schema) -> Iterator[tuple[str, str, list[Direction]]]:
    """Yields the types that get features, in order: how, and from which directions.

    Args:
        plan: what is there; a type without features has 0 of them, or is said to be filled.
    """
    structured = {one.name for one in plan.types if one.filled == "structure"}
    known = {one.name for one in plan.types if one.filled == "given" and one.num_features}
    missing = [one.name for one in plan.types if one.name not in known]
    while missing:
        # All types that are next to one with features, at once: the order of types is no matter.
        near = [
            name
            for name in missing
            if name not in structured
            and any(channel.sender in known for channel in plan.into(name))
        ]
        for name in near or missing:
            channels = [one for one in plan.into(name) if not near or one.sender in known]
            yield name, "neighbours" if near else "structure", channels
        known |= set(near or missing)
        missing = [name for name in missing if name not in known]


def filling_depth(schema: Schema) -> int:
    """Returns how many hops the features of a node look at that were not given."""
    depth = {one.name: 0 for one in schema.types}
    for name, how, channels in filling_order(schema):
        near = [depth[channel.sender] for channel in channels]
        depth[name] = 1 + max(near) if how == "neighbours" else 2
    return max(depth.values())


def describe_filling(schema: Schema) -> str:
    """Returns a line that says which types got features and how; empty if all had some."""
    said = {"neighbours": "the means of their neighbours' features", "structure": "their structure"}
    texts = [
        f"nodes of type {one.name!r} have no features: they get {said[one.filled]} "
        f"({one.num_features:,} columns)"
        for one in schema.types
        if one.filled in said
    ]
    return "; ".join(texts)


def _matrix(graph: Graph, channel: Direction) -> scipy.sparse.csr_array | None:
    """Returns the weights of a direction, ``[receivers, senders]``; None if the graph lacks it."""
    if channel.relation not in graph.relations:
        return None
    relation = graph.relations[channel.relation]
    shape = (graph.nodes[relation.target].num_nodes, graph.nodes[relation.source].num_nodes)
    weight = relation.edge_weight
    if weight is None:
        weight = np.ones(len(relation.indices), np.float32)
    matrix = scipy.sparse.csr_array((weight, relation.indices, relation.indptr), shape=shape)
    return matrix.T.tocsr() if channel.backwards else matrix


def filled_table(
    how: str,
    channels: list[Direction],
    count: int,
    *,
    mean: Callable[[Direction], Any],
    degrees: Callable[[Direction], Any],
    widths: Mapping[str, int],
) -> Any:
    """Returns features of a type that has none.

    Args:
        how: as `filling_order` says.
        channels: likewise.
        count: how many nodes there are.
        mean: returns the mean of the neighbours' features in a direction.
        degrees: returns log(1 + d) of the nodes, and its mean over their neighbours. Both return
            None for a direction that the graph lacks.
        widths: how many features the senders have.
    """
    if how == "structure":
        columns: list[Any] = []
        for channel in channels:
            found = degrees(channel)
            columns += [np.zeros(count)] * 2 if found is None else found
        return np.stack(columns or [np.ones(count)], axis=1).astype(np.float32)
    blocks: list[Any] = []
    for channel in channels:
        found = mean(channel)
        if found is None:
            found = scipy.sparse.csr_array((count, widths[channel.sender]), dtype=np.float32)
        blocks.append(found)
    if all(scipy.sparse.issparse(one) for one in blocks):
        return scipy.sparse.hstack(blocks, format="csr")
    dense = [one.toarray() if scipy.sparse.issparse(one) else one for one in blocks]
    return np.concatenate(dense, axis=1)
