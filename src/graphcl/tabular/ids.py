"""Columns of node ids, and the type that keeps every id unchanged.

An id is an integer or a string. In a format without types (CSV), ids are integers if all of them
are written in the usual form of an integer. One `007`, `1e3` or number of more than 64 bits makes
all of them strings.
"""

from dataclasses import dataclass

from graphcl.errors import GraphError
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.sources import Source

INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
WIDE = ("UBIGINT", "HUGEINT", "UHUGEINT")
TEXTS = ("VARCHAR", "UUID")
_DECIMAL = "'0|-?[1-9][0-9]{0,18}'"


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
