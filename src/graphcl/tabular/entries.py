r"""Sorts the edges of a relation, as pairs of node numbers, into the entries of a CSR matrix.

An entry is one 64-bit key, :math:`2^{31} u + v` for row u and column v. DuckDB sorts the keys, on
disk if they do not fit in memory. Equal keys are then adjacent, and are merged as they are read.

In a plain graph each edge :math:`(u, v)` gives the entries :math:`(u, v)` and :math:`(v, u)`. Their
keys are doubled, plus 1 for the reversed direction, so that edges that are listed in both
directions are known. In a typed graph rows are targets and columns are sources.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from graphcl.arrays import Array, Doubles, Floats, Integers
from graphcl.store.writer import ArrayWriter
from graphcl.tabular.duck import Duck
from graphcl.tabular.features import InMemory
from graphcl.tabular.report import EdgeCounts

BLOCK = 1 << 20  # entries that are looked at, written or numbered at a time
MAX_NODES = 1 << 31  # two node numbers and the direction fit in 63 bits
Aging = Callable[[Doubles], Floats]
# Rows, columns, weights (or None) and features (or None) of entries, sorted by rows.
Entries = tuple[Integers, Integers, Array | None, Array | None]


def _runs(duck: Duck, query: str, shift: int) -> Iterator[list[Array]]:
    """Yields the columns of a query that is sorted by keys, its first column.

    Keys that are the same but for their last `shift` bits come in one batch.
    """
    held: list[Array] = []
    for batch in duck.batches(query):
        parts: list[Array] = [column.to_numpy() for column in batch.columns]
        if held:
            parts = [np.concatenate(pair) for pair in zip(held, parts, strict=True)]
        # The last entry may continue in the next batch, so it is held back.
        cut = int(np.searchsorted(parts[0], parts[0][-1] >> shift << shift))
        held, ready = [part[cut:] for part in parts], [part[:cut] for part in parts]
        if len(ready[0]):
            yield ready
    if held and len(held[0]):
        yield held


def symmetric_entries(
    duck: Duck, counts: EdgeCounts, *, weighted: bool, age: Aging | None = None
) -> Iterator[Entries]:
    """Yields the entries of undirected edges, sorted by row and column.

    If `counts.symmetric` is true at the end, weights must be halved.

    Args:
        duck: a session with a table ``pairs``: node numbers ``u`` and ``v``, and weights ``w`` if
            `weighted`.
        counts: completed when the last entry has been read.
        weighted: whether entries have weights. The weights of all rows that name an edge are
            added; in a symmetric list, each edge counts once.
        age: turns times ``m`` into features; that of an edge is of the latest row that names it.
    """
    keys_seen = entries_seen = repeated = 0
    balanced = True
    picked = f"{', w' if weighted else ''}{'' if age is None else ', m'}"
    halves = [
        f"SELECT ({a} * {MAX_NODES} + {b}) * 2 + {direction} AS k{picked} FROM pairs WHERE u <> v"
        for a, b, direction in (("u", "v", 0), ("v", "u", 1))
    ]
    # Also sorted by weight: a sum of floats depends on their order.
    query = f"{halves[0]} UNION ALL {halves[1]} ORDER BY k{', w' if weighted else ''}"
    for keys, *values in _runs(duck, query, 1):
        # Two levels of merging: equal keys repeat a row in the same direction; two keys that
        # differ in the lowest bit alone are one entry, listed in both directions.
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        distinct = keys[starts]
        firsts = np.flatnonzero(np.diff(distinct >> 1, prepend=-1))
        entries = distinct[firsts] >> 1
        keys_seen += len(distinct)
        entries_seen += len(entries)
        repeated += len(keys) - len(distinct)
        total = features = None
        if age is not None:
            latest = np.maximum.reduceat(values[-1], starts)
            features = age(np.maximum.reduceat(latest, firsts))
        if weighted:
            sums = np.add.reduceat(values[0], starts)
            total = np.add.reduceat(sums, firsts)
            both = np.diff(firsts, append=len(distinct)) == 2
            pair = firsts[both]
            one_way, other = sums[pair], sums[pair + 1]
            balanced &= bool(both.all() and np.allclose(one_way, other, rtol=1e-9, atol=0))
        yield entries // MAX_NODES, entries % MAX_NODES, total, features
    # Every row and every edge was counted twice, as (u, v) and as (v, u).
    counts.edges = entries_seen // 2
    counts.repeated = repeated // 2
    counts.both_directions = (keys_seen - entries_seen) // 2
    counts.symmetric = balanced and keys_seen == 2 * entries_seen > 0


def directed_entries(
    duck: Duck,
    where: str,
    *,
    weighted: bool,
    features: Floats | None,
    age: Aging | None = None,
) -> Iterator[Entries]:
    """Yields the entries of a relation, sorted by target and source.

    Edges with the same ends are one, with the sum of their weights and the latest of their times,
    unless they have features.

    Args:
        duck: a session with a table ``pairs`` (u, v, place, w).
        where: an SQL condition on its rows.
        weighted: whether entries have weights.
        features: those of the edges, by place; None without any.
        age: turns times ``m`` into the last feature.
    """
    # Also sorted by weight: a sum of floats depends on their order.
    weight, last = (", w" if weighted else ""), ("w" if weighted else "k")
    query = (
        f"SELECT v * {MAX_NODES} + u AS k, place{weight}{'' if age is None else ', m'} FROM pairs "
        f"WHERE {where} "
        f"ORDER BY k, {last if features is None else 'place'}"
    )
    for keys, places, *values in _runs(duck, query, 0):
        total, rows = (values[0] if weighted else None), None
        if features is not None:
            rows = features[places]
            rows = rows if age is None else np.concatenate([rows, age(values[-1])], axis=1)
        else:
            starts = np.flatnonzero(np.diff(keys, prepend=-1))
            keys = keys[starts]
            total = None if total is None else np.add.reduceat(total, starts)
            rows = None if age is None else age(np.maximum.reduceat(values[-1], starts))
        yield keys // MAX_NODES, keys % MAX_NODES, total, rows


def fill_csr(
    into: InMemory | ArrayWriter,
    entries: Iterable[Entries],
    *,
    rows: int,
    most: int,
    dtype: Any,
    weighted: bool = False,
    width: int = 0,
    adjust: Callable[[Floats], None] = lambda _: None,
) -> None:
    """Fills ``indices``, ``indptr``, ``edge_weight`` and ``edge_features`` from sorted entries.

    Args:
        into: where the arrays are created.
        entries: sorted by rows.
        rows: of the matrix.
        most: how many entries there are at most.
        dtype: of the indices.
        weighted: whether entries have weights.
        width: features of an entry.
        adjust: is given all weights at the end.
    """
    arrays = {"indices": into.array("indices", (most,), dtype)}
    if weighted:
        arrays["edge_weight"] = into.array("edge_weight", (most,), np.float32)
    if width:
        arrays["edge_features"] = into.array("edge_features", (most, width), np.float32)
    indptr = into.array("indptr", (rows + 1,), np.int64)
    place = 0
    # Entries are sorted by row, so a batch covers a range of rows. Its first row may have begun in
    # the previous batch, hence `+=`. Row lengths become pointers at the end.
    for owners, columns, weights, features in entries:
        part = slice(place, place + len(columns))
        found = {"indices": columns, "edge_weight": weights, "edge_features": features}
        for name in arrays:
            with np.errstate(over="ignore", under="ignore"):
                arrays[name][part] = found[name]
        first = int(owners[0])
        degrees = np.bincount(owners - first)
        indptr[first + 1 : first + 1 + len(degrees)] += degrees
        place = part.stop
    np.cumsum(indptr, out=indptr)
    if weighted:
        adjust(arrays["edge_weight"][:place])
    names = list(arrays)
    arrays.clear()  # no map may be left when files are cut
    for name in names:
        into.shorten(name, place)
