"""Finds the source, target and id columns, and the type that keeps every id unchanged.

Columns are named by the caller, or guessed from their names; `graphcl.tabular.guessing` judges
these guesses by the data, and every guess is reported.

An id is an integer or a string. In a format without types (CSV), ids are integers if all of them
are written in the usual form of an integer. One `007`, `1e3` or number of more than 64 bits makes
all of them strings.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphcl.errors import GraphError, counted, suggestion
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.report import shell
from graphcl.tabular.sources import Source

SOURCES = ("source", "src", "from", "source_id", "from_id", "u", "node1", "node_1", "start", "head")
TARGETS = ("target", "dst", "to", "target_id", "to_id", "v", "node2", "node_2", "end", "tail")
IDS = ("node_id", "nodeid", "node", "key")
_ENDINGS = ("_id", "_ids", "-id", " id", "_key")  # of a column that is named after what it names
LABELS = ("label", "labels", "y", "class", "target")
SPLITS = ("split", "fold", "set", "partition")
PREDICTIONS = ("given", "predicted")
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


def identity(source: Source, name: str | None, kind: str = "") -> tuple[str, str]:
    """Returns the column of the ids of nodes, which are called `kind`, and how it was found.

    Where nothing but names can be judged, `name` comes before a column that is called anything.
    """
    if name:
        return find(source, name, "--id-column"), "given"
    ranks = {column: rank(column, kind) for column in source.columns}
    guessed = min(ranks, key=lambda column: ranks[column])
    if ranks[guessed] < OTHER:
        return guessed, "guessed by name"
    by_name = named(source, ("name",))
    if by_name:
        return by_name, "guessed by name"
    return next(iter(source.columns)), "guessed: the first column"


FOREIGN = 2  # rank of a column `*_id` that may be of another table
OTHER, NAME = 3, 4  # ranks of columns that are not named like ids, and of one called `name`


def rank(column: str, kind: str) -> int:
    """Returns how little a column is named like one of ids of nodes that are called `kind`."""
    plain = column.strip().lower()
    if plain == "id":
        return 0
    if kind and singular(column) == singular(kind):
        return 1
    camel = column.strip().endswith(("Id", "ID")) and not column.strip().isupper()
    if plain in IDS or camel or any(plain.endswith(one) for one in _ENDINGS):
        return FOREIGN
    return NAME if plain == "name" else OTHER


def named_type(column: str, types: Iterable[str]) -> str:
    """Returns the type that a column is named after, or an empty text."""
    plain = singular(column)
    found = [name for name in types if singular(name) == plain]
    return found[0] if len(found) == 1 else ""


def singular(name: str) -> str:
    """Returns ``author`` for ``Authors``, ``author_id`` and ``author``."""
    plain = name.strip().lower()
    for ending in (*_ENDINGS, "id"):
        if plain.endswith(ending) and len(plain) > len(ending) + 1:
            plain = plain.removesuffix(ending)
            break
    return plain.removesuffix("s") if len(plain) > 2 else plain


def named(source: Source, candidates: Sequence[str], excluding: str | None = None) -> str | None:
    """Returns the column whose name comes first among the candidates, or None."""
    known = {name.strip().lower(): name for name in source.columns if name != excluding}
    return next((known[name] for name in candidates if name in known), None)


def looks_like(source: Source, name: str) -> str:
    """Returns ``label``, ``split`` or ``prediction`` if a column is named like one, else nothing.

    As a feature it would leak. Predictions are the columns that ``graphcl predict`` writes.
    """
    plain = name.strip().lower()
    for what, known in (("label", LABELS), ("split", SPLITS), ("prediction", PREDICTIONS)):
        if plain in known:
            return what
    told = any(column.lower().startswith("p:") for column in source.columns)
    return "prediction" if plain.startswith("p:") or (told and plain == "probability") else ""


def refusal(source: Source, name: str) -> tuple[str, tuple[str, ...]] | None:
    """Returns what is wrong with a feature that is named like a label, and words that settle it."""
    what, shown = looks_like(source, name), shell(name)
    if not what:
        return None
    given = "" if what == "prediction" else f"--{what} {shown}, or "
    return (
        f"{source.name}: column {name!r} would become a feature, but is named like a {what}: pass "
        f"{given}--ignore {shown}",
        ("--ignore" if what == "prediction" else f"--{what}", name),
    )


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
        """Refuses a row without an id, and an id with a NUL byte."""
        column, kind = quoted(self.column), self.source.columns[self.name]
        empty = f"({column} IS NULL OR {column} = '')" if kind == "VARCHAR" else f"{column} IS NULL"
        self._refuse(duck, empty, "column {0!r} is empty; every row needs an id there", ":")
        if kind in TEXTS:
            nul = f"contains({column}::VARCHAR, chr(0))"
            self._refuse(duck, nul, "column {0!r}: the id contains a NUL byte; remove it", ",")

    def _refuse(self, duck: Duck, condition: str, what: str, mark: str) -> None:
        query = f"SELECT rowid + 1 FROM {self.table} WHERE {condition} ORDER BY rowid LIMIT 1"
        for (row,) in duck.rows(query):
            raise GraphError(f"{self.source.name}: row {row}{mark} {what.format(self.name)}")

    def padding(self, duck: Duck) -> list[str]:
        """Returns a line if ids of an untyped file begin or end with a space."""
        if not self.source.untyped:
            return []
        column = quoted(self.column)
        (count,) = duck.row(f"SELECT count(*) FROM {self.table} WHERE {column} <> trim({column})")
        ids = counted(count, "id begins or ends", "ids begin or end")
        said = f"{self.source.name}: in {self.name!r} {ids} with a space, which is kept"
        return [said] if count else []

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
