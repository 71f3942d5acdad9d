"""The rows of a node table, which can be read several times and always come in the same order.

A table may have ten thousand columns. It is read in blocks: some columns at a time where the format
keeps columns apart (Parquet, a database), and few rows at a time where it does not (CSV). Memory
depends on neither the number of rows nor that of columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from graphcl.tabular.duck import Duck, literal, quoted
from graphcl.tabular.sources import Source

BLOCK_COLUMNS = 256  # of a format that keeps columns apart; each has buffers of its own
TEXT_COLUMNS = 8192  # of a text file, every line of which is read anyway
BLOCK_VALUES = 1 << 21  # values in a batch: 16 MB of float64
_LEAST_ROWS = 2048  # DuckDB works on as many at a time


class NodeTable:
    """A node table.

    A query may return its rows in another order the next time, so its result is kept in the
    session.

    Args:
        duck: the session.
        source: the table.

    Attributes:
        source: the table as it is read: the one given, or the copy of a query's result.
    """

    def __init__(self, duck: Duck, source: Source) -> None:
        self._duck = duck
        self.source = source if source.stable else _copied(duck, source)

    def narrow(self, name: str, columns: Sequence[str]) -> None:
        """Creates a table of the session from some columns; ``rowid`` is the row's number."""
        picked = ", ".join(quoted(column) for column in columns)
        self._duck.run(
            f"CREATE TABLE {quoted(name)} AS SELECT {picked} FROM {self.source.relation}",
            where=self.source.name,
        )

    def blocks(self, columns: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yields the columns that are read together."""
        width = TEXT_COLUMNS if self.source.untyped else BLOCK_COLUMNS
        for start in range(0, len(columns), width):
            yield columns[start : start + width]

    def batches(self, expressions: Sequence[str]) -> Iterator[tuple[int, Any]]:
        """Yields the number of the first row, and a batch with a column per expression."""
        picked = ", ".join(f"{sql} AS c{place}" for place, sql in enumerate(expressions))
        rows = max(_LEAST_ROWS, BLOCK_VALUES // len(expressions))
        query, first = f"SELECT {picked} FROM {self.source.relation}", 0
        for batch in self._duck.batches(query, where=self.source.name, rows=rows):
            if batch.num_rows:
                yield first, batch
            first += batch.num_rows


def _copied(duck: Duck, source: Source) -> Source:
    """Keeps the rows in the session; a wide table in a file, which DuckDB's own would not hold."""
    if len(source.columns) <= BLOCK_COLUMNS:
        duck.run(f"CREATE TABLE node_copy AS FROM {source.relation}", where=source.name)
        return replace(source, relation="node_copy", stable=True)
    file = literal(str(duck.folder / "nodes.parquet"))
    rows = max(_LEAST_ROWS, BLOCK_VALUES // len(source.columns))
    duck.run(
        f"COPY (FROM {source.relation}) TO {file} (FORMAT parquet, ROW_GROUP_SIZE {rows})",
        where=source.name,
    )
    relation = f"read_parquet({file})"
    return replace(source, relation=relation, columns=duck.columns(relation), stable=True)
