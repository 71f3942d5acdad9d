"""Resolves ``--edges`` and ``--nodes``: a file, a table in a database, or an SQL query.

The result is an SQL expression that DuckDB scans later. Text, Parquet and DuckDB files are not read
beyond what is needed to find their columns.

The dialect of a delimited text file is found from its first lines. DuckDB's own detection also
guesses types, and would read `007` as the number 7. Here every field is read as text. Whether a
column holds numbers is decided once all rows have been read.
"""

import codecs
import csv
import gzip
import io
import re
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from graphcl.errors import GraphError, check_known, demand, option
from graphcl.files import RUN_CONFIG
from graphcl.files.arrays import refuse_gzipped
from graphcl.files.remote import DATABASE, PARQUET
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
_DURATIONS = {  # intervals of what Arrow counts
    "s": "to_seconds({})",
    "ms": "to_milliseconds({})",
    "us": "to_microseconds({})",
    "ns": "to_microseconds({} // 1000)",
}
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
    named = isinstance(text, str)
    source = _open(duck, text, role, options) if named else _in_memory(duck, text, role)
    # DuckDB numbers the rows of a table as `rowid`, unless a column has that name.
    for name in [one for one in source.columns if one.lower() == "rowid"]:
        renamed = {("row id" if one == name else one): k for one, k in source.columns.items()}
        relation = f'(SELECT * RENAME ({quoted(name)} AS "row id") FROM {source.relation})'
        source = replace(source, relation=relation, columns=renamed)
    return source


def _open(duck: Duck, text: str, role: str, options: TableOptions) -> Source:
    if is_query(text):
        return _query(duck, text, role)
    path, table = _split_table(text)
    kind = _kind(path)
    if several := _parquet_files(path):
        return _parquet(duck, text, several)
    advice = "" if kind in SUFFIXES else "; an SQL query begins with SELECT, WITH or FROM"
    demand(path.exists(), f"{path}: no such file{advice}")
    takes = f"{option(role)} takes a file or an SQL query, or a folder of .parquet files"
    demand(not path.is_dir(), f"{path}: is a directory; {takes}")
    demand(path.stat().st_size, f"{path}: is empty")
    if kind not in (*TEXT, *GRAPHS):
        _check_beginning(path, kind)
    if kind in TEXT:
        return _delimited(path, header=options.header, names=options.names | _HEADER_NAMES)
    if kind in PARQUET:
        return _parquet(duck, str(path), [path])
    if kind in DATABASE:
        return _database(duck, path, table, role)
    if kind in (*GRAPHS, *ARRAYS):
        read = graph_formats.read_graph if kind in GRAPHS else graph_formats.read_adjacency
        return _load_tables(duck, path, read(path), role)
    known_suffixes = ", ".join(SUFFIXES)
    raise GraphError(f"{path}: unknown kind of file; known: {known_suffixes}, or an SQL query")


def _scan(duck: Duck, name: str, relation: str, **more: Any) -> Source:
    """Returns what an SQL expression gives as a table."""
    return Source(name, relation, duck.columns(relation, where=name), **more)


def _parquet(duck: Duck, name: str, files: Sequence[Path]) -> Source:
    """Opens Parquet files of the same columns.

    The format has no durations: Arrow writes them as integers, and beside them what they are.
    """
    from pyarrow import ArrowException, parquet, types

    relation = f"read_parquet([{', '.join(map(file_literal, files))}], hive_partitioning=false)"
    schema: Any = ()
    with suppress(ArrowException, OSError, ValueError):  # DuckDB says what is wrong with a file
        schema = parquet.read_schema(files[0])
    read = [
        f"{_DURATIONS[one.type.unit].format(quoted(one.name))} AS {quoted(one.name)}"
        for one in schema
        if types.is_duration(one.type)
    ]
    return _scan(
        duck, name, f"(SELECT * REPLACE ({', '.join(read)}) FROM {relation})" if read else relation
    )


def _check_beginning(path: Path, kind: str) -> None:
    """Refuses a file whose first bytes are not those of its kind.

    Raises:
        GraphError: it is gzipped, or something else under this name.
    """
    refuse_gzipped(path, GraphError)
    with path.open("rb") as file:
        head = file.read(16)
    demand(
        kind not in PARQUET or head[:4] == b"PAR1",
        f"{path}: is not a Parquet file, whatever its name says",
    )
    demand(
        kind not in DATABASE or head[8:12] == b"DUCK" or head == _SQLITE,
        f"{path}: is neither a DuckDB nor an SQLite database",
    )


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
        arrow = pyarrow.table([_plain(one) for one in arrow.columns], arrow.column_names)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:160]
        raise GraphError(
            f"{role}: a {type(table).__name__} is not a table of columns ({reason})"
        ) from None
    names = arrow.column_names
    demand(names, f"{role}: the table has no columns")
    demand(len(set(names)) == len(names), f"{role}: two columns have the same name: {names[:8]}")
    return _scan(duck, role, duck.register(f"{role}_given", arrow))


def _of_pandas(table: Any) -> Any:
    """Returns the columns of a pandas table, and its index first if that has a name."""
    import pyarrow

    named = any(name is not None for name in getattr(table.index, "names", ()))
    frame = (table.reset_index() if named else table).rename(columns=str)
    return pyarrow.Table.from_pandas(frame, preserve_index=False)


def _plain(column: Any) -> Any:
    """Returns a column of Arrow as DuckDB takes it; without a value it has no type."""
    import pyarrow

    if 0 < column.null_count == len(column):
        return pyarrow.nulls(len(column))
    if pyarrow.types.is_duration(column.type):
        return column.cast("duration[us]", safe=False)
    return column.cast("float") if pyarrow.types.is_float16(column.type) else column


def _parquet_files(path: Path) -> list[Path]:
    """Returns the Parquet files of a folder, or those that a pattern such as ``x/*.parquet`` names.

    They are sorted by name, which is the order of their rows. Files that begin with a dot or an
    underscore are left out, as other programs do. Those of a run are answers.
    """
    if path.is_dir():
        if (path / RUN_CONFIG).is_file():
            return []
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


def _query(duck: Duck, sql: str, role: str) -> Source:
    name = f"{option(role)} query"
    sql = sql.strip().rstrip(";")
    demand(duck.is_one_select(sql, where=name), f"{name}: must be one SELECT; got {sql[:60]!r}")
    return _scan(duck, name, f"({sql})", stable=False)


def _load_tables(duck: Duck, path: Path, found: tuple[Any, Any], role: str) -> Source:
    """Copies the tables of edges and nodes of a graph file into the session."""
    relation = f"{duck.schema}.{role}_"  # nodes are read in another branch
    for what, table in zip(("edges", "nodes"), found, strict=True):
        duck.load(f"{role}_{what}", table)
    nodes = _scan(duck, str(path), f"{relation}nodes")
    return _scan(duck, str(path), f"{relation}edges", nodes=nodes)


def _database(duck: Duck, path: Path, table: str | None, role: str) -> Source:
    with path.open("rb") as file:
        sqlite = file.read(len(_SQLITE)) == _SQLITE
    if sqlite:
        loaded = _load_sqlite(duck, path, table, into=f"{role}_sqlite")
        return _scan(duck, f"{path}:{loaded}", f"{role}_sqlite")
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
    return _scan(duck, f"{path}:{name}", relation, stable=False)


def _load_sqlite(duck: Duck, path: Path, table: str | None, *, into: str) -> str:
    """Copies a table into the session in chunks and returns its name.

    Python's `sqlite3` reads it, because DuckDB would download its reader. In SQLite every value has
    its own type. A column becomes integer, real or text according to its values: text if any value
    is text, else real if any is real.
    """
    import pyarrow

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
            as_kinds = ", ".join(f"CAST({quoted(one)} AS {kind})" for one, kind in kinds.items())
            cursor = database.execute(f"SELECT {as_kinds} FROM {quoted(name)}")
            types = {
                "INTEGER": pyarrow.int64(),
                "REAL": pyarrow.float64(),
                "TEXT": pyarrow.string(),
            }
            schema = pyarrow.schema([(one, types[kind]) for one, kind in kinds.items()])
            duck.load(into, schema.empty_table())  # an empty table still has columns
            while chunk := read(lambda: cursor.fetchmany(CHUNK_ROWS)):
                columns = map(pyarrow.array, zip(*chunk, strict=True), schema.types)
                duck.load(into, pyarrow.Table.from_arrays(list(columns), schema=schema))
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
    demand(listed, f"{path}: has no tables")
    if table is None and len(listed) == 1:
        return listed[0]
    demand(
        table is not None,
        f"{path}: has several tables ({', '.join(listed[:10])}); name one: {path}:{listed[0]}",
    )
    name = str(table)
    check_known(name, listed, what=f"{path}: has no table", listed="it has", error=GraphError)
    return name


def _sqlite_kinds(database: sqlite3.Connection, path: Path, table: str) -> dict[str, str]:
    """Returns ``INTEGER``, ``REAL`` or ``TEXT`` for each column."""
    kinds = {}
    for name, *_ in database.execute(f"SELECT * FROM {quoted(table)} LIMIT 0").description:
        query = f"SELECT DISTINCT upper(typeof({quoted(name)})) FROM {quoted(table)}"
        found = {kind for (kind,) in database.execute(query)}
        demand("BLOB" not in found, f"{path}: column {name!r} of table {table!r} contains blobs")
        kinds[name] = next((kind for kind in ("TEXT", "REAL") if kind in found), "INTEGER")
    return kinds


def _split_table(text: str) -> tuple[Path, str | None]:
    """Splits ``graph.db:edges``; a colon in any other file's name is part of the path."""
    before, colon, table = text.rpartition(":")
    if colon and _kind(Path(before)) in DATABASE:
        return Path(before), table
    return Path(text), None


def _kind(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _read_csv(
    path: Path,
    columns: Sequence[str],
    *,
    header: bool,
    zipped: bool,
    delimiter: str,
    quote: str,
    skip: int = 0,
) -> str:
    """Returns an SQL expression that reads every column of a file as text."""
    fields = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in columns)
    return (
        f"read_csv({file_literal(path)}, auto_detect=false, columns={{{fields}}}, "
        f"delim={literal(delimiter)}, quote={literal(quote)}, escape={literal(quote)}, "
        f"header={str(header).lower()}, skip={skip}, compression='{'gzip' if zipped else 'none'}')"
    )


def _delimited(path: Path, *, header: bool | None, names: frozenset[str]) -> Source:
    """Opens a text file; what stands between its fields is found from its first lines.

    Args:
        path: a text file, gzipped or not.
        header: whether the first line names the columns. None guesses: in a table, it is a header
            unless one of its first two fields is a number; in a list of edges with spaces between
            the ends, if it has one of the expected names.
        names: expected column names; a first line of a table that contains one is a header.

    Raises:
        GraphError: the file is empty, is not UTF-8 text, or repeats a column's name.
    """
    head, zipped = _head(path)
    words = _kind(path) not in (".csv", ".tsv")  # fields may be separated by spaces
    every = re.split(r"\r?\n|\r", head)
    lines = [line for line in every if line.strip()]
    if words:
        lines = [line for line in lines if not line.startswith(("#", "%"))]
    demand(lines, f"{path}: is empty")
    delimiter = _delimiter(path, lines[0], words=words)
    fields = _fields(head, lines[0], delimiter)
    if header is None:
        named = any(field.strip().lower() in names for field in fields)
        number = any(_NUMBER.fullmatch(field.strip()) for field in fields[:2])
        again = _names_again(lines, delimiter)
        header = (named and not (words and again)) or not (words or number or again)
    columns = tuple(
        field if header and field.strip() else f"column{place}"
        for place, field in enumerate(fields)
    )
    lowered = [name.lower() for name in columns]
    for place, name in enumerate(columns):
        demand(
            name.lower() not in lowered[:place], f"{path}: the header names column {name!r} twice"
        )
    how: dict[str, Any] = {"header": header, "zipped": zipped}
    before = every.index(lines[0])  # empty lines, and comments
    relation = _read_csv(path, columns, delimiter=delimiter, quote='"', skip=before, **how)
    if delimiter == " ":  # any run of spaces and tabs
        # DuckDB splits at one character only: read whole lines, and split them with a pattern.
        how |= {"header": False, "skip": before + 1 if header else 0}
        whole = _read_csv(path, ("line",), delimiter=_LINE, quote="", **how)
        split = "string_split_regex(trim(line, ' \t'), '[ \t]+')"
        picked = ", ".join(f'words[{place}] AS "{name}"' for place, name in enumerate(columns, 1))
        relation = (
            f"(SELECT {picked} FROM (SELECT {split} AS words FROM {whole} "
            "WHERE NOT starts_with(line, '#') AND NOT starts_with(line, '%')))"
        )
    return Source(str(path), relation, dict.fromkeys(columns, "VARCHAR"), untyped=True)


def _names_again(lines: Sequence[str], delimiter: str) -> bool:
    """Returns whether both names that a first line begins with are among the ends of later lines.

    So it is in a list of edges without column names: ``alice,bob`` names two nodes.
    """
    rows = (line.split(delimiter.strip(" ") or None, 2)[:2] for line in lines)
    first = {field.strip() for field in next(rows)}
    later = {field.strip() for row in rows for field in row}
    return len(first) == 2 and first <= later


def _head(path: Path) -> tuple[str, bool]:
    """Returns the beginning of a file as text, and whether the file is gzipped."""
    with path.open("rb") as file:
        raw = file.read(_HEAD_BYTES)
    zipped = raw[:2] == b"\x1f\x8b"
    if zipped:
        try:
            with gzip.open(path) as file:
                raw = file.read(_HEAD_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise GraphError(f"{path}: damaged gzip ({error})") from None
    named = path.suffix.lower() == ".gz"
    demand(zipped or not named, f"{path}: is named .gz but is not gzipped")
    zeros = max(raw[::2].count(0), raw[1::2].count(0))  # every other byte of UTF-16
    wide = raw[:2] in (b"\xff\xfe", b"\xfe\xff") or zeros > len(raw) // 4
    demand(not wide, f"{path}: is UTF-16; convert it: iconv -f utf-16 -t utf-8 {path} > NEW.csv")
    demand(
        b"\x00" not in raw, f"{path}: is not a text file; .csv and .tsv files must be UTF-8 text"
    )
    # The cut may fall inside a character. DuckDB reports a wrong byte that comes later.
    text = codecs.getincrementaldecoder("utf-8-sig")("replace").decode(raw)
    known, wrong, _ = text.partition("\ufffd")
    demand(
        not wrong,
        f"{path}: line {known.count(chr(10)) + 1} is not UTF-8; convert it: iconv -f latin1 "
        f"-t utf-8 {path} > NEW.csv",
    )
    return text, zipped


def _delimiter(path: Path, line: str, *, words: bool) -> str:
    if _kind(path) == ".tsv":
        return "\t"
    outside = re.sub(r'"[^"]*"', "", line)  # a delimiter inside quotes does not count
    best = max(DELIMITERS, key=outside.count)
    spaces = words and (best not in outside or best == "\t")
    return " " if spaces else best


def _fields(head: str, line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return line.split()
    try:
        start = head.index(line)  # from here, not the line alone: a quoted name may span lines
        return next(csv.reader(io.StringIO(head[start:], newline=""), delimiter=delimiter))
    except (csv.Error, StopIteration):
        return line.split(delimiter)
