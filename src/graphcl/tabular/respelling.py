"""Ids of a list that are written otherwise in the table of nodes: ``1805``, and ``001805`` there.

Ids are taken as they are written, so these are two nodes. Where edges name nodes that are not
there, this says whether zeros are all that differs, and proposes the query that writes both alike.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcl.errors import counted, is_command, option
from graphcl.files.remote import DATABASE, PARQUET
from graphcl.tabular.duck import Duck, exists, is_query, literal, quoted
from graphcl.tabular.report import short
from graphcl.tabular.sources import TEXT, Source

MOST_DIGITS = 30  # of ids that are padded with zeros


@dataclass(frozen=True)
class Respelled:
    """Ids of one end of a list that differ from ids of nodes by zeros alone.

    Attributes:
        count: how many.
        here: one of them.
        there: the same id in the table of nodes.
        width: how many digits every id of a node has; 0 if they differ in that, or some are names.
        plain: whether the ids of nodes are written without such zeros.
        distinct: whether the ids of nodes still differ as whole numbers.
    """

    count: int
    here: str
    there: str
    width: int
    plain: bool
    distinct: bool


def find_respelled(duck: Duck, lacking: str, nodes: str) -> Respelled | None:
    """Returns the ids that are there but for their zeros, if any are.

    Args:
        duck: the session of the list.
        lacking: SQL for rows (id, row) of ids that are not among the nodes'.
        nodes: the table (key) of the nodes.
    """
    bare_end, bare_key = _bare("id::VARCHAR"), _bare("key::VARCHAR")
    count, here, there = duck.row(
        f"SELECT count(*), arg_min(id::VARCHAR, row), arg_min(key, row) FROM (SELECT *, {bare_end} "
        f"AS bare FROM {lacking}) JOIN (SELECT key::VARCHAR AS key, {bare_key} AS bare FROM "
        f"{nodes}) USING (bare)"
    )
    if not count:
        return None
    shortest, longest, digits, plain, distinct = duck.row(
        "SELECT min(length(key)), max(length(key)), bool_and(bare IS NOT NULL AND NOT "
        "contains(key, '.')), bool_and(key = coalesce(bare, key)), count(*) = count(DISTINCT bare) "
        f"FROM (SELECT key::VARCHAR AS key, {bare_key} AS bare FROM {nodes})"
    )
    width = longest if digits and shortest == longest <= MOST_DIGITS else 0
    return Respelled(int(count), here, there, int(width), bool(plain), bool(distinct))


def _bare(cell: str) -> str:
    """Returns SQL for the digits of a whole number without zeros in front; NULL if it is none."""
    digits = f"ltrim(regexp_replace({cell}, '[.]0+$', ''), '0')"
    whole = f"regexp_full_match({cell}, '[0-9]+([.]0+)?')"
    return f"CASE WHEN {whole} THEN coalesce(nullif({digits}, ''), '0') END"


@dataclass(frozen=True)
class Table:
    """A table as the user gives it, and the option that gives it.

    Attributes:
        given: a file, a query, or a table in memory.
        source: the opened table.
        option: the option's name, ``edges`` or ``nodes``.
        of: the relation or type that it is of; empty in a plain graph.
        columns: those of its ids.
    """

    given: Any
    source: Source
    option: str
    of: str
    columns: Sequence[str]

    @property
    def is_pandas(self) -> bool:
        """Whether it is a table of pandas."""
        return hasattr(self.given, "columns") and hasattr(self.given, "index")


def describe_respelled(found: Respelled, listed: Table, nodes: Table) -> str:
    """Says that ids of a list are written otherwise than those of nodes, and what to do."""
    are = counted(found.count, "id differs", "ids differ")
    said = f"{are} from ids of nodes by zeros alone: {short(found.here)} here, "
    said += f"{short(found.there)} in {nodes.source.name}"
    if found.plain:  # the list has zeros
        remedy = _as_numbers(listed) or "write them without zeros here"
    elif found.width:
        remedy = _padded(listed, found.width) or f"write them with {found.width} digits here"
    elif found.distinct:
        remedy = _as_numbers(nodes) or "write them alike"
    else:
        remedy = "write them alike"
    return f"{said}; {remedy}"


def _as_numbers(table: Table) -> str:
    """Proposes to read ids as whole numbers."""
    if table.is_pandas:
        return f"make them whole numbers: {_of_pandas(table, 'astype(float).astype(int)')}"
    casts = {name: f"CAST({quoted(name)} AS BIGINT)" for name in table.columns}
    return _proposal(table, casts, "read them as whole numbers")


def _padded(table: Table, width: int) -> str:
    """Proposes to put zeros in front of ids."""
    if table.is_pandas:
        change = _of_pandas(table, f"astype(str).str.zfill({width})")
        return f"write them with {width} digits: {change}"
    padded = {}
    for name in table.columns:
        digits = f"regexp_replace({quoted(name)}::VARCHAR, '[.]0+$', '')"
        longest = f"greatest({width}, length({digits}))::INT"  # a longer one is not cut
        padded[name] = f"lpad({digits}, {longest}, '0')"
    return _proposal(table, padded, f"read them with {width} digits")


def _of_pandas(table: Table, change: str) -> str:
    return "; ".join(f"table[{name!r}] = table[{name!r}].{change}" for name in table.columns)


def _proposal(table: Table, written: dict[str, str], what: str) -> str:
    """Returns the option with a query that writes columns otherwise; empty if no query reads it."""
    rows = _in_query(table)
    if not rows:
        return ""
    replaced = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in written.items())
    query = f"SELECT * REPLACE ({replaced}) FROM {rows}"
    plain = is_command() and not set(query) & set("$`\\!")  # as a shell takes it in double quotes
    typed = '"' + query.replace('"', '\\"') + '"' if plain else shlex.quote(query)
    if is_command() and table.option == "edges" and not table.of:  # most commands take it bare
        return f"{what}, with a query in place of the list: {typed}"
    return f"{what}: {option(table.option, query, of=table.of, written=typed)}"


def _in_query(table: Table) -> str:
    """Returns a table as a query reads it; empty if it cannot, or would read something else."""
    given = table.given
    if not isinstance(given, str):
        return ""
    if is_query(given):
        return f"({given.strip().rstrip(';')})"
    suffix = Path(given.removesuffix(".gz")).suffix.lower()
    if not exists(given) or set("*?[\\") & set(given) or suffix in DATABASE:
        return ""
    if suffix in PARQUET:
        return literal(given)
    if suffix not in TEXT:
        return ""
    numbered = [f"column{place}" for place in range(len(table.source.columns))]
    header = "false" if list(table.source.columns) == numbered else "true"
    # Texts, as they are read without a query: 007 in another column stays 007.
    return f"read_csv({literal(given)}, all_varchar=true, header={header})"
