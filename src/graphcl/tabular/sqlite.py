"""Reads SQLite files in chunks through Python's `sqlite3`; DuckDB would download its reader."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphcl.errors import GraphError, suggestion
from graphcl.tabular.duck import Duck, quoted

CHUNK_ROWS = 100_000
_MAGIC = b"SQLite format 3\x00"


def is_sqlite(path: Path) -> bool:
    """Returns whether a file is an SQLite database, by its first bytes."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def load_sqlite(duck: Duck, path: Path, table: str | None, *, into: str) -> str:
    """Copies a table or view into the session and returns its name.

    In SQLite every value has its own type. A column becomes integer, real or text according to its
    values: text if any value is text, else real if any is real.
    """
    try:
        # Read-only: the user's database is never changed.
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise GraphError(f"{path}: {error}") from None
    try:
        name = _choose(connection, path, table)
        kinds = _kinds(connection, path, name)
        for chunk in _chunks(connection, name):
            duck.load(into, _arrow(chunk, kinds))
    except sqlite3.Error as error:
        raise GraphError(f"{path}: {error}") from None
    finally:
        connection.close()
    return name


def _choose(connection: sqlite3.Connection, path: Path, table: str | None) -> str:
    listed = [
        name
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') "
            "AND name NOT LIKE 'sqlite_%' ORDER BY name"
        )
    ]
    return choose_table(path, table, listed)


def choose_table(path: Path, table: str | None, listed: list[str]) -> str:
    """Returns the table that is asked for, or the only one in the database."""
    if not listed:
        raise GraphError(f"{path}: has no tables")
    if table is None and len(listed) == 1:
        return listed[0]
    known = ", ".join(listed[:10])
    if table is None:
        raise GraphError(f"{path}: has several tables ({known}); name one: {path}:{listed[0]}")
    if table not in listed:
        near = suggestion(table, listed)
        raise GraphError(f"{path}: has no table {table!r}; it has {known}{near}")
    return table


def _kinds(connection: sqlite3.Connection, path: Path, table: str) -> dict[str, str]:
    """Returns ``integer``, ``real`` or ``text`` for each column."""
    cursor = connection.execute(f"SELECT * FROM {quoted(table)} LIMIT 0")
    kinds = {}
    for name, *_ in cursor.description:
        found = {
            kind
            for (kind,) in connection.execute(
                f"SELECT DISTINCT typeof({quoted(name)}) FROM {quoted(table)}"
            )
        } - {"null"}
        if "blob" in found:
            raise GraphError(f"{path}: column {name!r} of table {table!r} contains blobs")
        kinds[name] = "text" if "text" in found else "real" if "real" in found else "integer"
    return kinds


def _chunks(connection: sqlite3.Connection, table: str) -> Iterator[list[tuple[Any, ...]]]:
    cursor = connection.execute(f"SELECT * FROM {quoted(table)}")
    first = True
    while chunk := cursor.fetchmany(CHUNK_ROWS):
        first = False
        yield chunk
    if first:
        yield []  # an empty table still has columns


def _arrow(chunk: list[tuple[Any, ...]], kinds: dict[str, str]) -> Any:
    import pyarrow

    types = {"integer": pyarrow.int64(), "real": pyarrow.float64(), "text": pyarrow.string()}
    converted = {"integer": int, "real": float, "text": str}
    columns = {}
    for place, (name, kind) in enumerate(kinds.items()):
        convert: Any = converted[kind]
        values = [None if row[place] is None else convert(row[place]) for row in chunk]
        columns[name] = pyarrow.array(values, type=types[kind])
    return pyarrow.table(columns)
