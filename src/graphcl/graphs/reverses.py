"""Relations that are another one read backwards."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from graphcl.graphs.relation import Key, Relation

if TYPE_CHECKING:
    from graphcl.graphs.graph import Graph

_BLOCK = 1 << 20  # edges


def without_reverses(graph: "Graph") -> tuple["Graph", list[str]]:
    """Leaves out relations that are an earlier one read backwards; returns lines that say so.

    Such a relation says nothing new, and would show in one direction the edges that a view or a
    held-out set leaves out in the other.
    """
    kept: dict[Key, Relation] = {}
    said = []
    for key, one in graph.relations.items():
        other, same = find_reverse(one, kept.values())
        if other is not None:
            said.append(describe_reverse(one, other, same=same))
        if not same:
            kept[key] = one
    if len(kept) < len(graph.relations):
        graph = replace(graph, relations=kept)
    return graph, said


def find_reverse(one: Relation, earlier: Iterable[Relation]) -> tuple[Relation | None, bool]:
    """Returns the relation that has the same pairs of nodes, backwards; and if `one` is needless.

    It is if weights and features of the edges are the same, too. Two undirected relations within
    one type are not each other's reverse: they may have the same edges. Memory is bounded.
    """
    found = None
    for other in earlier:
        ends = (other.target, other.source) == (one.source, one.target)
        if not ends or len(other.indices) != len(one.indices) or not len(one.indices):
            continue
        backwards = _fingerprint(one, backwards=True)
        if _fingerprint(other) != backwards:
            continue
        if one.source == one.target and _fingerprint(one) == backwards:
            continue
        if _fingerprint(other, values=True) == _fingerprint(one, backwards=True, values=True):
            return other, True
        found = found or other
    return found, False


def describe_reverse(one: Relation, other: Relation, *, same: bool) -> str:
    """Returns a line on two relations that are each other's reverse."""
    if same:
        return f"edges {one.name}: they are those of {other.name}, backwards: kept once"
    return (
        f"edges {one.name}: they join the same nodes as those of {other.name}, backwards, with "
        "other weights or features: both are kept, and dropped or held out apart"
    )


def _fingerprint(relation: Relation, *, backwards: bool = False, values: bool = False) -> int:
    """Returns 128 bits of a relation's edges that do not depend on their order.

    `values` takes weights and features in. The sum of a hash of each edge is the same for the same
    edges, and needs no sorting; a block at a time, as the arrays may be on disk.
    """
    totals = [0, 0]
    for start in range(0, len(relation.indices), _BLOCK):
        part = slice(start, start + _BLOCK)
        sources = np.asarray(relation.indices[part]).astype(np.uint64)
        places = np.arange(start, start + len(sources))
        targets = (np.searchsorted(relation.indptr, places, side="right") - 1).astype(np.uint64)
        ends = (targets, sources) if backwards else (sources, targets)
        columns = list(ends)
        if values and relation.edge_weight is not None:
            columns.append(_bits(relation.edge_weight[part]))
        if values and relation.edge_features is not None:
            columns += [_bits(column) for column in np.asarray(relation.edge_features[part]).T]
        for number in range(2):
            hashed = np.full(len(sources), 1 + number + len(columns), np.uint64)
            for column in columns:
                hashed = _mixed(hashed ^ column)
            totals[number] += int(hashed.sum(dtype=np.uint64))
    return (totals[0] % 2**64 << 64) | totals[1] % 2**64


def _bits(values: Any) -> Any:
    return np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)


def _mixed(numbers: Any) -> Any:
    """Returns the numbers as SplitMix64 mixes them."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
