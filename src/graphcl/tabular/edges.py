r"""Turns rows that name two nodes into the sorted entries of a symmetric CSR matrix.

Each row :math:`(u, v)` gives the entries :math:`(u, v)` and :math:`(v, u)`. An entry is one 64-bit
key, :math:`2 (2^{31} u + v)`, plus 1 for the reversed direction. DuckDB sorts the keys, on disk if
they do not fit in memory. Equal keys are then adjacent, and are merged as they are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.tabular import cells
from graphcl.tabular.duck import Duck, quoted

if TYPE_CHECKING:  # it imports SciPy, which commands without tables do not need
    from graphcl.tabular.sources import Source

MAX_NODES = 1 << 31  # two node numbers and the direction fit in 63 bits
Keys = npt.NDArray[np.int64]


@dataclass
class EdgeCounts:
    """Counts of what was found in the list of edges.

    Attributes:
        rows: rows of the list.
        self_loops: rows that join a node to itself; they are left out.
        repeated: rows that repeat an earlier one in the same direction; they are merged.
        both_directions: edges that are listed in both directions; each is one edge.
        edges: undirected edges that remain.
        dangling: rows that name a node that is not in the node table.
        symmetric: whether every edge is listed in both directions, with equal weights if any.
    """

    rows: int = 0
    self_loops: int = 0
    repeated: int = 0
    both_directions: int = 0
    edges: int = 0
    dangling: int = 0
    symmetric: bool = False


@dataclass
class Entries:
    """The entries of the adjacency, streamed once, sorted by row and column.

    Args:
        duck: a session with a table ``pairs``: node numbers ``u`` and ``v``, and weights ``w`` if
            `weighted`.
        weighted: whether entries have weights. The weights of all rows that name an edge are
            added; in a symmetric list, each edge counts once.
        counts: completed when the last entry has been read.
    """

    duck: Duck
    weighted: bool
    counts: EdgeCounts = field(default_factory=EdgeCounts)

    def __iter__(self) -> Iterator[tuple[Keys, Keys, npt.NDArray[np.float64] | None]]:
        """Yields rows, columns and summed weights.

        If `counts.symmetric` is true at the end, the caller must halve the weights.
        """
        keys_seen = entries_seen = 0
        balanced = True
        repeated = 0
        for keys, weights in self._whole_runs():
            # Two levels of merging: equal keys repeat a row in the same direction; two keys that
            # differ in the lowest bit alone are one entry, listed in both directions.
            starts = np.flatnonzero(np.diff(keys, prepend=-1))
            distinct = keys[starts]
            firsts = np.flatnonzero(np.diff(distinct >> 1, prepend=-1))
            entries = distinct[firsts] >> 1
            keys_seen += len(distinct)
            entries_seen += len(entries)
            repeated += len(keys) - len(distinct)
            total = None
            if weights is not None:
                sums = np.add.reduceat(weights, starts)
                total = np.add.reduceat(sums, firsts)
                both = np.diff(firsts, append=len(distinct)) == 2
                pair = firsts[both]
                one_way, other = sums[pair], sums[pair + 1]
                balanced &= bool(both.all() and np.allclose(one_way, other, rtol=1e-9, atol=0))
            yield entries // MAX_NODES, entries % MAX_NODES, total
        # Every row and every edge was counted twice, as (u, v) and as (v, u).
        self.counts.edges = entries_seen // 2
        self.counts.repeated = repeated // 2
        self.counts.both_directions = (keys_seen - entries_seen) // 2
        self.counts.symmetric = balanced and keys_seen == 2 * entries_seen > 0

    def _whole_runs(self) -> Iterator[tuple[Keys, npt.NDArray[np.float64] | None]]:
        """Yields sorted keys and their weights; all keys of an entry come in one batch."""
        held_keys, held_weights = np.zeros(0, np.int64), np.zeros(0)
        for batch in self.duck.batches(self._query()):
            keys = np.concatenate([held_keys, batch.column(0).to_numpy()])
            # The last entry may continue in the next batch, so it is held back. `>> 1 << 1` clears
            # the direction: the smallest key that belongs to the same entry.
            cut = int(np.searchsorted(keys, keys[-1] >> 1 << 1))
            held_keys, ready = keys[cut:], keys[:cut]
            weights: Any = None
            if self.weighted:
                weights = np.concatenate([held_weights, batch.column(1).to_numpy()])
                held_weights, weights = weights[cut:], weights[:cut]
            if len(ready):
                yield ready, weights
        if len(held_keys):
            yield held_keys, held_weights if self.weighted else None

    def _query(self) -> str:
        weight = ", w" if self.weighted else ""
        halves = [
            f"SELECT ({a} * {MAX_NODES} + {b}) * 2 + {direction} AS k{weight} FROM pairs "
            "WHERE u <> v"
            for a, b, direction in (("u", "v", 0), ("v", "u", 1))
        ]
        # Also sorted by weight: a sum of floats depends on their order.
        return f"{halves[0]} UNION ALL {halves[1]} ORDER BY k{weight}"


def number_ends(duck: Duck, *, kind: str, weighted: bool) -> int:
    """Creates ``pairs`` from ``edges`` (s, t, w) and ``nodes`` (key, number).

    Returns:
        The number of rows that name an unknown node; the numbers of unknown nodes are NULL.
    """
    (num_nodes,) = duck.row("SELECT count(*) FROM nodes")
    if num_nodes >= MAX_NODES:
        raise GraphError(f"tables: {num_nodes:,} nodes; at most {MAX_NODES - 1:,} can be numbered")
    weight = ", w" if weighted else ""
    duck.run("DROP TABLE IF EXISTS pairs")
    (identity,) = duck.row("SELECT bool_and(key = number) FROM nodes") if kind == "BIGINT" else (0,)
    if identity:  # the ids are the node numbers, so no join is needed

        def known(end: str) -> str:
            place = f"CAST({end} AS BIGINT)"
            return f"CASE WHEN {place} BETWEEN 0 AND {num_nodes - 1} THEN {place} END"

        duck.run(f"CREATE TABLE pairs AS SELECT {known('s')} u, {known('t')} v{weight} FROM edges")
    else:
        duck.run("SET preserve_insertion_order = false")  # faster; the keys are sorted later
        duck.run(
            f"CREATE TABLE pairs AS SELECT a.number u, b.number v{weight} FROM edges "
            f"LEFT JOIN nodes a ON CAST(s AS {kind}) = a.key "
            f"LEFT JOIN nodes b ON CAST(t AS {kind}) = b.key"
        )
        duck.run("SET preserve_insertion_order = true")
    (dangling,) = duck.row("SELECT count(*) FROM pairs WHERE u IS NULL OR v IS NULL")
    return int(dangling)


def weight_columns(source: "Source", name: str, decimal: str | None) -> str:
    """Returns SQL that selects weights for ``edges``: as ``given``, and as the number ``w``."""
    if decimal and cells.is_written(source, name):
        source = replace(source, decimals={name: decimal})
    return f"{quoted(name)} AS given, TRY_CAST({cells.plain(source, name)} AS DOUBLE) AS w"


def check_weights(duck: Duck, table: str, name: str, decimal: str | None) -> None:
    """Refuses weights of ``edges`` that are not positive; the column `name` of `table` has them."""
    wrong = duck.rows(
        "SELECT rowid, given::VARCHAR FROM edges WHERE w IS NULL OR NOT isfinite(w) OR w <= 0 "
        "ORDER BY rowid LIMIT 1"
    )
    if wrong:
        row, value = wrong[0]
        shown = "is missing" if value in (None, "") else f"is {value!r}"
        raise GraphError(
            f"{table}: row {row + 1}: the weight in column {name!r} {shown}; "
            "weights are positive numbers"
            + ("; with decimal commas: --decimal ," if not decimal and "," in (value or "") else "")
        )
