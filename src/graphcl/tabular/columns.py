"""Finds the source, target and id columns, and the type that keeps every id unchanged.

Columns are named by the caller, or guessed from their names; the callers report every guess.

An id is an integer or a string. In a format without types (CSV), ids are integers if all of them
are written in the usual form of an integer. One `007`, `1e3` or number of more than 64 bits makes
all of them strings.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphcl.errors import GraphError, suggestion
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.sources import Source

SOURCES = ("source", "src", "from", "source_id", "from_id", "u", "node1", "node_1", "start", "head")
TARGETS = ("target", "dst", "to", "target_id", "to_id", "v", "node2", "node_2", "end", "tail")
IDS = ("id", "node_id", "nodeid", "node", "key", "name")
LABELS = ("label", "labels", "y", "class", "target")
SPLITS = ("split", "fold", "set", "partition")
WEIGHTS = ("weight", "w", "value", "weights")

INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
WIDE = ("UBIGINT", "HUGEINT", "UHUGEINT")
TEXTS = ("VARCHAR", "UUID")
_DECIMAL = "'0|-?[1-9][0-9]{0,18}'"


def find(source: Source, name: str, option: str) -> str:
    """Returns the column called `name`, or the only one that differs from it in case alone."""
    if name in source.columns:
        return name
    lowered = [
        column for column in source.columns if column.strip().lower() == name.strip().lower()
    ]
    if len(lowered) == 1:
        return lowered[0]
    near = suggestion(name, source.columns)
    raise GraphError(f"{source.name}: {option}: no column {name!r}; it has {_listed(source)}{near}")


def find_all(source: Source, names: Iterable[str], option: str) -> tuple[str, ...]:
    """Returns the columns with these names, as `find` does."""
    return tuple(find(source, name, option) for name in names)


def ends(source: Source, first: str | None, second: str | None) -> tuple[str, str, str]:
    """Returns the columns of an edge's two ends, and how they were found.

    A column that is not given is guessed from its name; failing that, the first columns are taken.
    """
    if len(source.columns) < 2:
        raise GraphError(
            f"{source.name}: has one column ({_listed(source)}); an edge needs two ends; "
            "check that the delimiter is a comma, tab, semicolon or bar"
        )
    start = find(source, first, "--source-column") if first else None
    end = find(source, second, "--target-column") if second else None
    how = "given" if start and end else "guessed by name"
    start = start or named(source, SOURCES, excluding=end)
    end = end or named(source, TARGETS, excluding=start)
    if start is None or end is None:
        how = "guessed: the first two columns"
        rest = [name for name in source.columns if name not in (start, end)]
        start = start or rest.pop(0)
        end = end or rest.pop(0)
    if start == end:
        raise GraphError(f"{source.name}: column {start!r} cannot be both ends of an edge")
    return start, end, how


def identity(source: Source, name: str | None) -> tuple[str, str]:
    """Returns the column of the nodes' ids, and how it was found."""
    if name:
        return find(source, name, "--id-column"), "given"
    guessed = named(source, IDS)
    if guessed:
        return guessed, "guessed by name"
    return next(iter(source.columns)), "guessed: the first column"


def named(source: Source, candidates: Sequence[str], excluding: str | None = None) -> str | None:
    """Returns the column whose name comes first among the candidates, or None."""
    known = {name.strip().lower(): name for name in source.columns if name != excluding}
    return next((known[name] for name in candidates if name in known), None)


def _listed(source: Source) -> str:
    names = [repr(name) for name in source.columns]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


@dataclass(frozen=True)
class IdColumn:
    """A column of ids in a table of the session.

    Attributes:
        source: the table that the column comes from.
        name: the column's name in that table.
        table: the session's table.
        column: the column's name in the session's table.
    """

    source: Source
    name: str
    table: str
    column: str

    def check_present(self, duck: Duck) -> None:
        """Refuses a row without an id."""
        column = quoted(self.column)
        empty = f"{column} IS NULL"
        if self.source.columns[self.name] == "VARCHAR":
            empty = f"({empty} OR {column} = '')"
        found = duck.rows(f"SELECT rowid FROM {self.table} WHERE {empty} ORDER BY rowid LIMIT 1")
        if found:
            raise GraphError(
                f"{self.source.name}: row {found[0][0] + 1}: column {self.name!r} is empty; "
                "every row needs an id there"
            )

    def padded(self, duck: Duck) -> int:
        """Counts the ids of an untyped file that begin or end with a space."""
        if not self.source.untyped:
            return 0
        column = quoted(self.column)
        (count,) = duck.row(f"SELECT count(*) FROM {self.table} WHERE {column} <> trim({column})")
        return int(count)

    def kind(self, duck: Duck) -> str:
        """Returns BIGINT, UBIGINT or VARCHAR: the first of them that keeps every id unchanged."""
        given, column = self.source.columns[self.name], quoted(self.column)
        if given in INTEGERS:
            return "BIGINT"
        if given in WIDE:
            low, high = duck.row(f"SELECT min({column}), max({column}) FROM {self.table}")
            if high is None or (low >= -(2**63) and high < 2**63):
                return "BIGINT"
            return "UBIGINT" if low >= 0 and high < 2**64 else "VARCHAR"
        if given not in TEXTS:
            raise GraphError(
                f"{self.source.name}: column {self.name!r} is {given}; ids are integers or "
                f'strings: cast it in a query: SELECT CAST("{self.name}" AS BIGINT), …'
            )
        if not self.source.untyped:
            return "VARCHAR"
        (whole,) = duck.row(
            f"SELECT bool_and(regexp_full_match({column}, {_DECIMAL}) "
            f"AND TRY_CAST({column} AS BIGINT) IS NOT NULL) FROM {self.table}"
        )
        return "BIGINT" if whole else "VARCHAR"


def common_kind(kinds: set[str]) -> str:
    """Returns the type in which the ids of several columns are compared."""
    return kinds.pop() if len(kinds) == 1 else "VARCHAR"
