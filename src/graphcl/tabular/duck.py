"""A DuckDB session that spills to disk, never uses the network, and reports errors in one line."""

import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from copy import copy
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy.typing as npt

from graphcl.errors import GraphError, import_extra, option

MEMORY_LIMIT = "1500MB"  # beyond it, DuckDB sorts and joins on disk
BATCH_ROWS = 1 << 18
T = TypeVar("T")
_QUERY = re.compile(r"\s*(select|with|from)\s", re.IGNORECASE)

_CSV = {
    r"Invalid unicode|not utf-8": "is not UTF-8; convert it: iconv -f latin1 -t utf-8",
    r"Expected Number of Columns: (\d+) Found: 1\b": "has 1 field; the first line has {0}",
    r"Expected Number of Columns: (\d+) Found: (\d+)": "has {1} fields; the first line has {0}",
    r"unterminated quote": "has a quote that is not closed",
    r"Maximum line size of (\d+)": "is longer than {0} bytes",
}

# The kind of error that DuckDB puts before its message.
_PREFIX = re.compile(r"^(?:[A-Z][A-Za-z]*(?: [A-Z][A-Za-z]*)* Error|Error)\s*:\s*")


class Duck:
    """A database in a temporary folder, which is removed when the session ends.

    Extensions are neither downloaded nor loaded, and SQL cannot read Python variables. A session
    may have branches: they share the database, and each names its tables for itself.

    Attributes:
        folder: a temporary folder, for files of the caller too.
        schema: the schema of its tables, which another branch puts before their names.
    """

    def __init__(self) -> None:
        # Batches leave DuckDB as Arrow.
        duckdb = import_extra("duckdb", "pyarrow", feature="reading tables", extra="tables")
        self._error: type[Exception] = duckdb.Error
        self._memory_error: type[Exception] = duckdb.OutOfMemoryException
        self._folder = tempfile.TemporaryDirectory(prefix="graphcl-tables-")
        self.folder, self.schema = Path(self._folder.name), "main"
        how = {
            "memory_limit": MEMORY_LIMIT,
            "temp_directory": str(self.folder / "spill"),
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "allow_community_extensions": "false",
            "python_enable_replacements": "false",
        }
        try:
            self._connection: Any = duckdb.connect(str(self.folder / "work.duckdb"), config=how)
        except duckdb.IOException as error:
            self._folder.cleanup()
            raise GraphError(
                f"tables: no temporary file can be written ({one_line(error)}); make room in "
                f"{tempfile.gettempdir()}, or name another folder (TMPDIR=FOLDER graphcl …)"
            ) from None
        self._branches: list[Duck] = []
        # On a terminal, DuckDB's progress bar would draw over ours.
        self._connection.execute("SET enable_progress_bar = false")

    def branch(self, schema: str) -> "Duck":
        """Returns this session with tables and files of its own; it ends with this one."""
        branch = copy(self)
        branch._connection = self._connection.cursor()
        branch.schema, branch.folder = schema, self.folder / schema
        branch.folder.mkdir()
        branch._connection.execute("SET enable_progress_bar = false")
        branch.run(f"CREATE SCHEMA {schema}")
        branch.run(f"SET schema = '{schema}'")
        self._branches.append(branch)
        return branch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (*self._branches, self):  # one that is open would keep the database
            one._connection.close()
        self._folder.cleanup()

    def run(self, sql: str, *, where: str = "tables") -> None:
        """Executes a statement; an error message begins with `where`."""
        self.rows(sql, where=where)

    def rows(self, sql: str, *, where: str = "tables") -> list[tuple[Any, ...]]:
        """Returns all rows of a query with a small result."""
        return self._ask(lambda: self._connection.execute(sql).fetchall(), where)

    def _ask(self, work: Callable[[], T], where: str) -> T:
        try:
            return interruptible(work, self._connection.interrupt)
        except (self._error, OSError) as error:
            raise self._said(error, where) from None

    def row(self, sql: str, *, where: str = "tables") -> tuple[Any, ...]:
        """Returns the first row of a query."""
        return self.rows(sql, where=where)[0]

    def each(
        self,
        relation: str,
        texts: Sequence[str],
        counts: Sequence[str],
        there: str = "true",
        *,
        where: str = "tables",
    ) -> list[list[int]]:
        """Returns what is counted of each column of texts; NULLs are left out.

        Each cell stands in a row of its own: else whatever is counted or compared would take room
        for every column, which a few hundred columns do not have.

        Args:
            relation: the table.
            texts: SQL expressions of the columns.
            counts: what is counted, of `cell`.
            there: of which cells.
            where: what an error message begins with.
        """
        named = ", ".join(f'{text} AS "{place}"' for place, text in enumerate(texts))
        rows = self.rows(
            f"SELECT place, {', '.join(counts)} FROM (UNPIVOT (SELECT {named} FROM {relation}) "
            f"ON COLUMNS(*) INTO NAME place VALUE cell) WHERE {there} GROUP BY place",
            where=where,
        )
        found = {int(place): counted for place, *counted in rows}
        return [found.get(place, [0] * len(counts)) for place in range(len(texts))]

    def first(
        self, table: str, condition: str, cell: str = "NULL", *, where: str = "tables"
    ) -> list[tuple[int, str]]:
        """Returns the first row of a table of the session where a condition holds, if any does.

        It is a number, from 1, and the text of a cell, an SQL expression.
        """
        query = f"SELECT rowid + 1, ({cell})::VARCHAR FROM {table} WHERE {condition}"
        return self.rows(f"{query} ORDER BY rowid LIMIT 1", where=where)

    def count(self, rows: str) -> int:
        """Returns how many rows there are of ``TABLE``, or of ``TABLE WHERE CONDITION``."""
        return int(self.row(f"SELECT count(*) FROM {rows}")[0])

    def arrays(self, sql: str, *, where: str = "tables") -> list[npt.NDArray[Any]]:
        """Returns the columns of a query as arrays."""
        return [column.to_numpy() for column in self.table(sql, where=where).columns]

    def table(self, sql: str, *, where: str = "tables") -> Any:
        """Returns the result of a query as an Arrow table."""
        return self._ask(lambda: self._connection.sql(sql).to_arrow_table(), where)

    def batches(self, sql: str, *, where: str = "tables", rows: int = BATCH_ROWS) -> Iterator[Any]:
        """Yields the result of a query as Arrow record batches of up to `rows` rows."""
        reader = self._ask(lambda: self._connection.sql(sql).to_arrow_reader(rows), where)
        while (batch := self._ask(lambda: next(reader, None), where)) is not None:
            yield batch

    def numbered(self, sql: str, *, where: str, rows: int) -> Iterator[tuple[int, Any]]:
        """Yields the number of the first row, and a record batch, of those that are not empty."""
        first = 0
        for batch in self.batches(sql, where=where, rows=rows):
            if batch.num_rows:
                yield first, batch
            first += batch.num_rows

    def _said(self, error: Exception, where: str) -> GraphError:
        """Returns an error of DuckDB in our words."""
        if isinstance(error, self._memory_error) or "Out of Memory" in str(error):
            return GraphError(
                f"{where}: not enough memory, or no room for temporary files in "
                f"{tempfile.gettempdir()}; make room there, name another folder "
                f"(TMPDIR=FOLDER graphcl …), or leave columns out with {option('ignore')}"
            )
        return GraphError(f"{where}: {one_line(error)}")

    def columns(self, relation: str, *, where: str = "tables") -> dict[str, str]:
        """Returns the names and types of a relation's columns, in order."""
        described = self.rows(f"DESCRIBE SELECT * FROM {relation}", where=where)
        return {name: kind for name, kind, *_ in described}

    def load(self, table: str, columns: Any) -> None:
        """Appends columns, by name or as Arrow, to a table of the session, or creates one."""
        import pyarrow

        self._connection.register("arriving", pyarrow.table(columns))
        try:
            self.run(f"CREATE TABLE IF NOT EXISTS {quoted(table)} AS FROM arriving LIMIT 0")
            self.run(f"INSERT INTO {quoted(table)} FROM arriving")
        finally:
            self._connection.unregister("arriving")

    def register(self, name: str, arrow: Any) -> str:
        """Makes an Arrow table readable under a name, without a copy; returns the name as SQL."""
        self._ask(lambda: self._connection.register(name, arrow), name)
        return quoted(name)

    def is_one_select(self, sql: str, *, where: str) -> bool:
        """Returns whether `sql` is a single statement that only reads."""
        import duckdb

        try:
            statements = duckdb.extract_statements(sql)
        except self._error as error:
            raise GraphError(f"{where}: {one_line(error)}") from None
        return len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT


def one_line(error: Exception) -> str:
    """Returns DuckDB's message in one line, without its hints and without advice on its options.

    What is wrong with a line of a text file is said in our words.
    """
    text = _PREFIX.sub("", str(error).strip())
    place = re.search(r"CSV Error on Line: (\d+)", text)
    for pattern, words in _CSV.items():
        if place and (found := re.search(pattern, text)):
            return f"line {place[1]} {words.format(*found.groups())}"
    kept = []
    for line in text.splitlines():
        if not line.strip() or line.startswith(("Possible", "Candidate", "*", "LINE ")):
            break
        kept.append(line.strip())
    return "; ".join(kept)[:300].rstrip(" .") or "DuckDB failed"


def interruptible(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Returns what `work` returns; Ctrl-C and SIGTERM end it at any moment.

    Python hears of signals in its main thread, between two of its own steps. So compiled code runs
    in another thread, while this one waits; `stop` makes it give up.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    with ThreadPoolExecutor(1, "graphcl-tables") as thread:
        running = thread.submit(work)
        try:
            return running.result()
        except BaseException:
            while not running.done():  # it may not have begun when it is first stopped
                stop()
                wait([running], 0.05)
            raise


def is_query(text: str) -> bool:
    """Returns whether `text` is SQL rather than a path."""
    return _QUERY.match(text) is not None


def quoted(name: str) -> str:
    """Returns a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Returns a text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def file_literal(path: Path) -> str:
    """Returns a path as an SQL string in which ``*`` and ``?`` are not patterns."""
    text = str(path)
    return literal(re.sub(r"[*?\[]", r"[\g<0>]", text) if set("*?") & set(text) else text)
