"""Resolves ``--edges`` and ``--nodes``: a file, a table in a database, or an SQL query.

The result is an SQL expression that DuckDB scans later. Text, Parquet and DuckDB files are not read
beyond what is needed to find their columns.

The dialect of a delimited text file is found from its first lines. DuckDB's own detection also
guesses types, and would read `007` as the number 7. Here every field is read as text. Whether a
column holds numbers is decided once all rows have been read.
"""

import csv
import gzip
import io
import re
import sqlite3
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from graphcl.errors import GraphError, check_known, option
from graphcl.files.arrays import refuse_gzipped
from graphcl.store.header import is_store
from graphcl.tabular import graph_formats
from graphcl.tabular.duck import (
    Duck,
    file_literal,
    interruptible,
    is_query,
    literal,
    quoted,
)
from graphcl.tabular.options import TableOptions

TEXT = (".csv", ".tsv", ".txt", ".edges", ".el", ".edgelist")
PARQUET = (".parquet", ".pq")
DATABASE = (".duckdb", ".ddb", ".db", ".sqlite", ".sqlite3")
GRAPHS = (".graphml", ".gml")
ARRAYS = (".npy", ".npz")
EDGE_FILES = (*TEXT, *PARQUET, *DATABASE, *GRAPHS)
SUFFIXES = (*TEXT, *PARQUET, *DATABASE, *GRAPHS, *ARRAYS)

T = TypeVar("T")
_LONGEST = 1 << 26  # bytes of a cell of SQLite, which an expression in the file might compute
CHUNK_ROWS = 100_000  # rows of SQLite that are copied at a time
_SQLITE = b"SQLite format 3\x00"
# Column names that mark the first line of a file as a header.
_HEADER_NAMES = frozenset(("source", "target", "src", "dst", "from", "to", "id", "node", "node_id"))
_HEADER_NAMES |= {"label", "weight", "split"}
DELIMITERS = ",\t;|"
_HEAD_BYTES = 1 << 20
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_LINE = "\x1f"  # the ASCII unit separator: a delimiter that no text file uses, so a line is a field


@dataclass(frozen=True)
class Source:
    """A table that has been found but not read.

    Attributes:
        name: the table's name in messages.
        relation: an SQL expression to select from.
        columns: names and DuckDB types, in order.
        untyped: whether every column is text because the format has no types (CSV). Text that
            looks like a number is then a number.
        nodes: the node table from the same file, or None.
        stable: whether the rows come in the same order each time; those of a query may not.
        decimals: the decimal marks of columns whose texts are numbers with marks: ``1.169,00``.
        dates: the formats of columns whose texts are dates in another form than ``2016-03-20``.
        time: the column that says when rows came, where it is given; see `graphcl.tabular.times`.
        later: an SQL expression for the rows that are left out because they came later.
    """

    name: str
    relation: str
    columns: dict[str, str]
    untyped: bool = False
    nodes: "Source | None" = None
    stable: bool = True
    decimals: Mapping[str, str] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    time: str = ""
    later: str = ""


def looks_like_tables(text: str) -> bool:
    """Returns whether a graph argument names tables: a query, a file, or a folder of Parquet."""
    if is_query(text) or _kind(_split_table(text)[0]) in EDGE_FILES:
        return True
    return Path(text).is_dir() and not is_store(Path(text)) and bool(_parquet_files(Path(text)))


def open_source(duck: Duck, text: Any, *, role: str, options: TableOptions) -> Source:
    """Resolves a path, ``PATH:TABLE`` of a database, or an SQL query as ``edges``, ``nodes`` ….

    From Python it may also be a table in memory: of pandas, Polars, Arrow or DuckDB.

    `options.header` says whether a delimited file begins with column names; None guesses, with the
    help of the column names that the options have.

    Raises:
        GraphError: the source does not exist, or cannot be read.
    """
    if isinstance(text, str):
        source = _open(duck, text, role, options)
    else:
        source = _in_memory(duck, text, role)
    # DuckDB numbers the rows of a table as `rowid`, unless a column has that name.
    taken = [name for name in source.columns if name.lower() == "rowid"]
    for name in taken:
        renamed = {("row id" if one == name else one): k for one, k in source.columns.items()}
        relation = f'(SELECT * RENAME ({quoted(name)} AS "row id") FROM {source.relation})'
        source = replace(source, relation=relation, columns=renamed)
    return source


def _open(duck: Duck, text: str, role: str, options: TableOptions) -> Source:
    if is_query(text):
        return _query(duck, text, role)
    path, table = _split_table(text)
    kind = _kind(path)
    several = _parquet_files(path)
    if several:
        return _several(duck, text, several)
    if not path.exists():
        advice = "" if kind in SUFFIXES else "; an SQL query begins with SELECT, WITH or FROM"
        raise GraphError(f"{path}: no such file{advice}")
    if path.is_dir():
        raise GraphError(
            f"{path}: is a directory; {option(role)} takes a file or an SQL query, or a "
            "folder of .parquet files"
        )
    if path.stat().st_size == 0:
        raise GraphError(f"{path}: is empty")
    if kind not in (*TEXT, *GRAPHS):
        _check_beginning(path, kind)
    if kind in TEXT:
        if graph_formats.is_networkx_edge_list(path, kind):
            return _load_tables(duck, path, graph_formats.read_edge_list(path), role)
        names = options.names | _HEADER_NAMES
        dialect = detect_dialect(path, header=options.header, names=names)
        columns = dict.fromkeys(dialect.columns, "VARCHAR")
        return Source(str(path), dialect.scan(path), columns, untyped=True)
    if kind in PARQUET:
        relation = f"read_parquet({file_literal(path)})"
        return Source(str(path), relation, duck.columns(relation, where=str(path)))
    if kind in DATABASE:
        return _database(duck, path, table, role)
    if kind in GRAPHS:
        return _load_tables(duck, path, graph_formats.read_graph(path, kind), role)
    if kind in ARRAYS:
        return _load_tables(duck, path, graph_formats.read_adjacency(path), role)
    known_suffixes = ", ".join(SUFFIXES)
    raise GraphError(f"{path}: unknown kind of file; known: {known_suffixes}, or an SQL query")


def _check_beginning(path: Path, kind: str) -> None:
    """Refuses a file whose first bytes are not those of its kind.

    Raises:
        GraphError: it is gzipped, or something else under this name.
    """
    refuse_gzipped(path, GraphError)
    with path.open("rb") as file:
        head = file.read(16)
    if kind in PARQUET and head[:4] != b"PAR1":
        raise GraphError(f"{path}: is not a Parquet file, whatever its name says")
    if kind in DATABASE and head[8:12] != b"DUCK" and head != _SQLITE:
        raise GraphError(f"{path}: is neither a DuckDB nor an SQLite database")


def _in_memory(duck: Duck, table: Any, role: str) -> Source:
    """Returns a table of pandas, Polars, Arrow or DuckDB, which DuckDB scans where it is.

    A list of pairs is one of edges.
    """
    import pyarrow

    try:
        if hasattr(table, "columns") and hasattr(table, "index"):
            arrow = _of_pandas(table)
        elif isinstance(table, list) and all(isinstance(one, tuple) for one in table):
            ends = list(zip(*table, strict=True)) or ((), ())
            arrow = pyarrow.table(dict(zip(("source", "target"), ends, strict=True)))
        else:
            arrow = pyarrow.table(table)  # a dictionary of lists, or what speaks Arrow, as Polars
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:160]
        raise GraphError(
            f"{role}: a {type(table).__name__} is not a table of columns ({reason})"
        ) from None
    if not arrow.column_names:
        raise GraphError(f"{role}: the table has no columns")
    if len(set(arrow.column_names)) < len(arrow.column_names):
        raise GraphError(f"{role}: two columns have the same name: {arrow.column_names[:8]}")
    relation = duck.register(f"{role}_given", arrow)
    return Source(role, relation, duck.columns(relation, where=role))


def _of_pandas(table: Any) -> Any:
    """Returns the columns of a pandas table, and its index first if that has a name."""
    import pyarrow

    named = any(name is not None for name in getattr(table.index, "names", ()))
    frame = table.reset_index() if named else table
    frame = frame.rename(columns=str)
    for name in frame.columns:
        if str(frame[name].dtype) == "category":
            frame = frame.assign(**{name: frame[name].astype(object)})
    return pyarrow.Table.from_pandas(frame, preserve_index=False)


def _parquet_files(path: Path) -> list[Path]:
    """Returns the Parquet files of a folder, or those that a pattern such as ``x/*.parquet`` names.

    They are sorted by name, which is the order of their rows. Files that begin with a dot or an
    underscore are left out, as other programs do.
    """
    if path.is_dir():
        found = [one for kind in PARQUET for one in path.rglob(f"*{kind}")]
        top = path
    elif not path.exists() and _kind(path) in PARQUET and any(mark in str(path) for mark in "*?["):
        top = Path(path.anchor or ".")
        found = list(top.glob(str(path.relative_to(top) if path.anchor else path)))
    else:
        return []
    hidden = (".", "_")
    return sorted(
        one
        for one in found
        if one.is_file() and not any(p.startswith(hidden) for p in one.relative_to(top).parts)
    )


def _several(duck: Duck, text: str, files: list[Path]) -> Source:
    """Returns Parquet files as one table; it has the columns of the first."""
    listed = ", ".join(file_literal(file) for file in files)
    relation = f"read_parquet([{listed}], hive_partitioning=false)"
    return Source(text, relation, duck.columns(relation, where=text))


def _query(duck: Duck, sql: str, role: str) -> Source:
    name = f"{option(role)} query"
    sql = sql.strip().rstrip(";")
    if not duck.is_one_select(sql, where=name):
        raise GraphError(f"{name}: must be one SELECT; got {sql[:60]!r}")
    return Source(name, f"({sql})", duck.columns(f"({sql})", where=name), stable=False)


def _load_tables(duck: Duck, path: Path, found: graph_formats.GraphTables, role: str) -> Source:
    """Copies the tables of a graph file into the session."""

    def loaded(what: str, table: Any, nodes: Source | None = None) -> Source:
        duck.load(f"{role}_{what}", table)
        relation = f"{duck.schema}.{quoted(f'{role}_{what}')}"  # nodes are read in another branch
        return Source(str(path), relation, duck.columns(relation), nodes=nodes)

    nodes = None if found.nodes is None else loaded("nodes", found.nodes)
    return loaded("edges", found.edges, nodes)


def _database(duck: Duck, path: Path, table: str | None, role: str) -> Source:
    with path.open("rb") as file:
        sqlite = file.read(len(_SQLITE)) == _SQLITE
    if sqlite:
        loaded = _load_sqlite(duck, path, table, into=f"{role}_sqlite")
        relation = quoted(f"{role}_sqlite")
        return Source(f"{path}:{loaded}", relation, duck.columns(relation))
    alias = f"file {path.resolve()}"  # several tables may be in one file, which is attached once
    duck.run(
        f"ATTACH IF NOT EXISTS {literal(str(path))} AS {quoted(alias)} (READ_ONLY)",
        where=str(path),
    )
    own = f"WHERE database_name = {literal(alias)}"
    listed = duck.rows(f"SELECT table_name, schema_name FROM duckdb_tables() {own} ORDER BY ALL")
    views = duck.rows(f"SELECT view_name FROM duckdb_views() {own}")
    name = _choose_table(path, table, [one for one, _ in listed], [one for (one,) in views])
    relation = f"{quoted(alias)}.{quoted(dict(listed)[name])}.{quoted(name)}"
    columns = duck.columns(relation, where=f"{path}:{name}")
    return Source(f"{path}:{name}", relation, columns, stable=False)


def _load_sqlite(duck: Duck, path: Path, table: str | None, *, into: str) -> str:
    """Copies a table into the session in chunks and returns its name.

    Python's `sqlite3` reads it, because DuckDB would download its reader. In SQLite every value has
    its own type. A column becomes integer, real or text according to its values: text if any value
    is text, else real if any is real.
    """
    try:
        # Read-only: the user's database is never changed. Another thread reads it; see
        # `interruptible`.
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)

            def read(work: Callable[[], T]) -> T:
                return interruptible(work, database.interrupt)

            listed: dict[str, list[str]] = {"table": [], "view": []}
            for kind, one in database.execute(
                "SELECT type, name FROM sqlite_master WHERE type IN ('table', 'view') "
                "AND name NOT LIKE 'sqlite_%' ORDER BY name"
            ):
                listed[kind].append(one)
            name = _choose_table(path, table, listed["table"], listed["view"])
            kinds = read(lambda: _sqlite_kinds(database, path, name))
            cursor = database.execute(f"SELECT * FROM {quoted(name)}")
            duck.load(into, _arrow([], kinds))  # an empty table still has columns
            while chunk := read(lambda: cursor.fetchmany(CHUNK_ROWS)):
                duck.load(into, _arrow(chunk, kinds))
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise GraphError(f"{path}: {error}") from None
    return name


def _choose_table(path: Path, table: str | None, listed: list[str], views: list[str]) -> str:
    """Returns the table that is asked for, or the only one in the database.

    A view is a query of whoever made the file: it may read other files, or never end.
    """
    if table in views or (views and not listed):
        name = table or views[0]
        raise GraphError(
            f"{path}: {name!r} is a view, a query that the file brings along, which is not run; "
            f"make a table of it: CREATE TABLE {name}_rows AS SELECT * FROM {name}"
        )
    if not listed:
        raise GraphError(f"{path}: has no tables")
    if table is None and len(listed) == 1:
        return listed[0]
    known = ", ".join(listed[:10])
    if table is None:
        raise GraphError(f"{path}: has several tables ({known}); name one: {path}:{listed[0]}")
    check_known(table, listed, what=f"{path}: has no table", listed="it has", error=GraphError)
    return table


def _sqlite_kinds(database: sqlite3.Connection, path: Path, table: str) -> dict[str, str]:
    """Returns ``integer``, ``real`` or ``text`` for each column."""
    kinds = {}
    for name, *_ in database.execute(f"SELECT * FROM {quoted(table)} LIMIT 0").description:
        query = f"SELECT DISTINCT typeof({quoted(name)}) FROM {quoted(table)}"
        found = {kind for (kind,) in database.execute(query)}
        if "blob" in found:
            raise GraphError(f"{path}: column {name!r} of table {table!r} contains blobs")
        kinds[name] = "text" if "text" in found else "real" if "real" in found else "integer"
    return kinds


def _arrow(chunk: list[tuple[Any, ...]], kinds: dict[str, str]) -> Any:
    import pyarrow

    known: dict[str, tuple[Any, Any]] = {
        "integer": (int, pyarrow.int64()),
        "real": (float, pyarrow.float64()),
        "text": (str, pyarrow.string()),
    }
    columns = {}
    for place, (name, kind) in enumerate(kinds.items()):
        convert, arrow_type = known[kind]
        values = [None if row[place] is None else convert(row[place]) for row in chunk]
        columns[name] = pyarrow.array(values, type=arrow_type)
    return pyarrow.table(columns)


def _split_table(text: str) -> tuple[Path, str | None]:
    """Splits ``graph.db:edges``; a colon in any other file's name is part of the path."""
    before, colon, table = text.rpartition(":")
    if colon and _kind(Path(before)) in DATABASE:
        return Path(before), table
    return Path(text), None


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


@dataclass(frozen=True)
class Dialect:
    """How to read a file.

    Attributes:
        delimiter: one character; a space stands for any run of spaces and tabs.
        header: whether the first line names the columns.
        columns: the names of the columns.
        compression: ``gzip`` or ``none``.
    """

    delimiter: str
    header: bool
    columns: tuple[str, ...]
    compression: str

    def scan(self, path: Path) -> str:
        """Returns an SQL expression that reads every column of the file as text."""
        if self.delimiter != " ":
            return self._read_csv(path, self.delimiter, self.columns, quote='"')
        # DuckDB splits at one character only: read whole lines, and split them with a pattern.
        lines = self._read_csv(path, _LINE, ("line",), quote="")
        words = "string_split_regex(trim(line, ' \t'), '[ \t]+')"
        named = ", ".join(
            f'words[{place}] AS "{name}"' for place, name in enumerate(self.columns, 1)
        )
        return (
            f"(SELECT {named} FROM (SELECT {words} AS words FROM {lines} "
            "WHERE NOT starts_with(line, '#') AND NOT starts_with(line, '%')))"
        )

    def _read_csv(self, path: Path, delimiter: str, columns: tuple[str, ...], *, quote: str) -> str:
        fields = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in columns)
        return (
            f"read_csv({file_literal(path)}, auto_detect=false, columns={{{fields}}}, "
            f"delim={literal(delimiter)}, quote={literal(quote)}, escape={literal(quote)}, "
            f"header={str(self.header).lower()}, compression='{self.compression}')"
        )


def detect_dialect(path: Path, *, header: bool | None, names: frozenset[str]) -> Dialect:
    """Detects the dialect of a file from its first lines.

    Args:
        path: a text file, gzipped or not.
        header: whether the first line names the columns. None guesses: it is a header unless one
            of its first two fields is a number.
        names: expected column names; a first line that contains one of them is a header.

    Raises:
        GraphError: the file is empty, is not UTF-8 text, or repeats a column's name.
    """
    head, compression = _head(path)
    words = _kind(path) not in (".csv", ".tsv")  # fields may be separated by spaces
    lines = [line for line in re.split(r"\r?\n|\r", head) if line.strip()]
    if words:
        lines = [line for line in lines if not line.startswith(("#", "%"))]
    if not lines:
        raise GraphError(f"{path}: is empty")
    delimiter = _delimiter(path, lines[0], words=words)
    fields = _fields(head, lines[0], delimiter)
    if header is None:
        named = any(field.strip().lower() in names for field in fields)
        header = named or not any(_NUMBER.fullmatch(field.strip()) for field in fields[:2])
        header = header and not words
    columns = tuple(
        field if header and field.strip() else f"column{place}"
        for place, field in enumerate(fields)
    )
    lowered = [name.lower() for name in columns]
    twice = [name for place, name in enumerate(columns) if name.lower() in lowered[:place]]
    if twice:
        raise GraphError(f"{path}: the header names column {twice[0]!r} twice")
    return Dialect(delimiter, header, columns, compression)


def _head(path: Path) -> tuple[str, str]:
    """Returns the beginning of a file as text, and how the file is compressed."""
    with path.open("rb") as file:
        raw = file.read(_HEAD_BYTES)
    compression = "none"
    if raw[:2] == b"\x1f\x8b":
        compression = "gzip"
        try:
            with gzip.open(path) as file:
                raw = file.read(_HEAD_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise GraphError(f"{path}: damaged gzip ({error})") from None
    elif path.suffix.lower() == ".gz":
        raise GraphError(f"{path}: is named .gz but is not gzipped")
    zeros = max(raw[::2].count(0), raw[1::2].count(0))  # every other byte of UTF-16
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or zeros > len(raw) // 4:
        convert = f"iconv -f utf-16 -t utf-8 {path} > NEW.csv"
        raise GraphError(f"{path}: is UTF-16; convert it: {convert}")
    if b"\x00" in raw:
        raise GraphError(f"{path}: is not a text file; .csv and .tsv files must be UTF-8 text")
    try:
        # In a longer file the cut may fall inside a character. DuckDB reports any wrong byte later.
        text = raw.decode("utf-8-sig", errors="strict" if len(raw) < _HEAD_BYTES else "ignore")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise GraphError(
            f"{path}: line {line} is not UTF-8; convert it: iconv -f latin1 -t utf-8 {path} "
            "> NEW.csv"
        ) from None
    return text, compression


def _delimiter(path: Path, line: str, *, words: bool) -> str:
    if _kind(path) == ".tsv":
        return "\t"
    outside = re.sub(r'"[^"]*"', "", line)  # a delimiter inside quotes does not count
    counts = {delimiter: outside.count(delimiter) for delimiter in DELIMITERS}
    best = max(counts, key=lambda delimiter: counts[delimiter])
    if words and (counts[best] == 0 or best == "\t"):
        return " "
    return best


def _fields(head: str, line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return line.split()
    try:
        start = head.index(line)  # from here, not the line alone: a quoted name may span lines
        return next(csv.reader(io.StringIO(head[start:], newline=""), delimiter=delimiter))
    except (csv.Error, StopIteration):
        return line.split(delimiter)
