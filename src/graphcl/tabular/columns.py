"""Finds the source, target and id columns, and the type that keeps every id unchanged.

Columns are named by the caller, or guessed from their names and judged by the data; every guess is
reported. Of the columns of a node table without an empty or repeated value, the one that holds the
ends of the edges has the ids. Names decide where several hold as much: `id`, `TYPE_id`, another
`*_id`, any other, and `name` last. A list's columns of ends are guessed by name, or are its first
two, unless these hold no node's id and others do.

Judged are the first `ROWS` rows of each list of edges: whatever their number, edges that name an
unknown node are found later. Values are compared as texts. That is how ids are compared: integers
only count as integers where all of them are written in the usual form.

An id is an integer or a string. In a format without types (CSV), ids are integers if all of them
are written in the usual form of an integer. One `007`, `1e3` or number of more than 64 bits makes
all of them strings.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from graphcl.errors import GraphError, counted, demand, is_command, option, suggestion
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.features import BLOCK_COLUMNS
from graphcl.tabular.options import COLUMNS, TableOptions, having
from graphcl.tabular.report import Problem, listed
from graphcl.tabular.sources import Source

if TYPE_CHECKING:
    from graphcl.tabular.edges import EdgeList

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


def find(source: Source, name: str, keyword: str) -> str:
    """Returns the column called `name`, or one that differs from it in case alone.

    `keyword` is the parameter that names it, for messages.
    """
    found = [name] if name in source.columns else having(source.columns, [name])
    near = "" if found else suggestion(name, source.columns)
    there = listed([repr(one) for one in source.columns])
    demand(found, f"{source.name}: {option(keyword)}: no column {name!r}; it has {there}{near}")
    return found[0]


def find_all(source: Source, names: Iterable[str], keyword: str) -> tuple[str, ...]:
    """Returns the columns with these names, as `find` does."""
    return tuple(find(source, name, keyword) for name in names)


def ends(source: Source, first: str | None, second: str | None) -> tuple[str, str, str]:
    """Returns the columns of an edge's two ends, and how they were found.

    A column that is not given is guessed from its name; failing that, the first columns are taken.
    """
    demand(
        len(source.columns) > 1,
        f"{source.name}: has one column ({', '.join(map(repr, source.columns))}); an edge needs "
        "two ends; check that the delimiter is a comma, tab, semicolon or bar",
    )
    start = find(source, first, "source_column") if first else None
    end = find(source, second, "target_column") if second else None
    how = "given" if start and end else "guessed by name"
    start = start or named(source, SOURCES, excluding=end)
    end = end or named(source, TARGETS, excluding=start)
    if start is None or end is None:
        how = "guessed: the first two columns"
        rest = [name for name in source.columns if name not in (start, end)]
        start = start or rest.pop(0)
        end = end or rest.pop(0)
    demand(start != end, f"{source.name}: column {start!r} cannot be both ends of an edge")
    return start, end, how


def identity(source: Source, name: str | None, kind: str = "") -> tuple[str, str]:
    """Returns the column of the ids of nodes, which are called `kind`, and how it was found.

    Where nothing but names can be judged, `name` comes before a column that is called anything.
    """
    if name:
        return find(source, name, "id_column"), "given"
    ranks = {column: rank(column, kind) for column in source.columns}
    guessed = min(ranks, key=lambda column: (ranks[column] == OTHER, ranks[column]))
    how = "guessed: the first column" if ranks[guessed] == OTHER else "guessed by name"
    return guessed, how


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
    fits = (one for one in (*_ENDINGS, "id") if plain.endswith(one) and len(plain) > len(one) + 1)
    plain = plain.removesuffix(next(fits, ""))
    return plain.removesuffix("s") if len(plain) > 2 else plain


def named(source: Source, candidates: Sequence[str], excluding: str | None = None) -> str | None:
    """Returns the column whose name comes first among the candidates, or None."""
    rest = [name for name in source.columns if name != excluding]
    return next(iter(having(rest, candidates)), None)


def looks_like(source: Source, name: str) -> str:
    """Returns ``label``, ``split`` or ``prediction`` if a column is named like one, else nothing.

    As a feature it would leak. Predictions are the columns that ``graphcl predict`` writes.
    """
    plain = name.strip().lower()
    predicted = plain.startswith("p:") or (
        plain == "probability" and any(one.lower().startswith("p:") for one in source.columns)
    )
    known = {"label": LABELS, "split": SPLITS, "prediction": PREDICTIONS}
    what = next((what for what, names in known.items() if plain in names), "")
    return what or ("prediction" if predicted else "")


def refusal(source: Source, name: str) -> Problem | None:
    """Returns what is wrong with a feature that is named like a label, and what settles it."""
    what = looks_like(source, name)
    if not what:
        return None
    given = "" if what == "prediction" else f"{option(what, name)}, or "
    return Problem(
        f"{source.name}: column {name!r} would become a feature, but is named like a {what}: pass "
        f"{given}{option('ignore', name)}",
        ("ignore" if what == "prediction" else what, name),
    )


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
        where, named = self.source.name, f"column {self.name!r}"
        empty = f"{column} IS NULL" + (f" OR {column} = ''" if kind == "VARCHAR" else "")
        for row, _ in duck.first(self.table, empty):
            raise GraphError(f"{where}: row {row}: {named} is empty; every row needs an id there")
        nul = f"contains({column}::VARCHAR, chr(0))" if kind in TEXTS else "false"
        for row, _ in duck.first(self.table, nul):
            raise GraphError(f"{where}: row {row}, {named}: the id contains a NUL byte; remove it")

    def padding(self, duck: Duck) -> list[str]:
        """Returns a line if ids of an untyped file begin or end with a space."""
        if not self.source.untyped:
            return []
        column = quoted(self.column)
        count = duck.count(f"{self.table} WHERE {column} <> trim({column})")
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
            ranges = {"BIGINT": (-(2**63), 2**63), "UBIGINT": (0, 2**64)}
            fits = (k for k, (a, b) in ranges.items() if high is None or (a <= low and high < b))
            return next(fits, "VARCHAR")
        demand(
            given in TEXTS,
            f"{self.source.name}: column {self.name!r} is {given}; ids are integers or strings: "
            f'cast it in a query: SELECT CAST("{self.name}" AS BIGINT), …',
        )
        whole = (
            f"regexp_full_match({column}, {_DECIMAL}) AND TRY_CAST({column} AS BIGINT) IS NOT NULL"
        )
        untyped = self.source.untyped
        plain = untyped and duck.row(f"SELECT bool_and({whole}) FROM {self.table}")[0]
        return "BIGINT" if plain else "VARCHAR"


def common_kind(kinds: set[str]) -> str:
    """Returns the type in which the ids of several columns are compared."""
    return kinds.pop() if len(kinds) == 1 else "VARCHAR"


ROWS = 100_000  # of a list of edges
HEAD = 2_000  # rows of a node table that show which columns may be unique
MOST = 16  # columns of a table that are compared
HALF = 0.5  # a column that holds fewer of the ids that an end names does not speak against another
BY_VALUES = "guessed: it holds the ids that edges name"
OTHER_ENDS = "guessed: they hold ids of nodes"
End = tuple[str, str]  # a list of edges and one of its columns


@dataclass
class Held:
    """A node table.

    Attributes:
        kind: its type; empty in a plain graph.
        table: its name in messages.
        column: of the ids.
        how: how it was found.
        ranks: the columns that may hold ids, and what their names say; less is better.
        shares: how many of the values of each end a column holds, from 0 to 1.
        unique: the columns without a repeated value; also those that are named like ids, if one
            of several rows is to be kept.
    """

    kind: str
    table: str
    column: str
    how: str
    ranks: dict[str, int] = field(default_factory=dict)
    shares: dict[str, dict[End, float]] = field(default_factory=dict)
    unique: set[str] = field(default_factory=set)

    def share(self, column: str, end: End) -> float:
        """Returns the share of an end's values that a column holds."""
        return self.shares.get(column, {}).get(end, 0.0)


def read_ends(duck: Duck, lists: Iterable["EdgeList"]) -> dict[End, int]:
    """Reads the columns of lists that may be their ends into ``wanted`` (place, value).

    Returns:
        How many values each of them has, in the order of places.
    """
    ends: dict[End, int] = {}
    duck.run("CREATE TABLE wanted (place INT, value VARCHAR)")
    for one in lists:
        source, excluded = one.source, (one.relation_column, one.options.weight)
        left = having(source.columns, [name for name in excluded if name])
        likely = [name for name in source.columns if name not in left]
        wanted = {*one.columns, *(likely[: MOST - 2] if one.how != "given" else ())}
        picked = [name for name in source.columns if name in wanted and may_be_ids(source, name)]
        ends |= dict.fromkeys([(one.text, name) for name in picked], 0)
        places = list(range(len(ends) - len(picked), len(ends)))
        texts = ", ".join(f"{quoted(name)}::VARCHAR" for name in picked)
        one.duck.run(
            f"INSERT INTO main.wanted SELECT DISTINCT * FROM (SELECT unnest({places}), "
            f"unnest([{texts}]::VARCHAR[]) AS v FROM (FROM {source.relation} LIMIT {ROWS})) "
            "WHERE v IS NOT NULL",
            where=source.name,
        )
    sizes = dict(duck.rows("SELECT place, count(*) FROM wanted GROUP BY place"))
    return {end: sizes.get(place, 0) for place, end in enumerate(ends)}


def node_table(
    duck: Duck, source: Source, kind: str, options: TableOptions, ends: Mapping[End, int]
) -> Held:
    """Reads the columns of a node table that may hold its ids.

    Args:
        duck: the session.
        source: the table.
        kind: its type; empty in a plain graph.
        options: those of this table.
        ends: what `read_ends` returned.
    """
    # In a plain graph, the name of the file is what its nodes are called.
    called = kind or source.name.rpartition("/")[2].partition(".")[0]
    column, how = identity(source, options.id_column, called)
    held = Held(kind, source.name, column, how)
    picked = [column]
    if how != "given":
        picked = _candidates(duck, source, held, called, options)
    picked = [one for one in picked if may_be_ids(source, one)]
    held.ranks = {one: rank(one, called) for one in picked}
    if picked:
        _compare(duck, source, held, ends)
    if options.duplicates != "refuse":
        held.unique |= {one for one in held.shares if held.ranks[one] < OTHER}
    return held


def may_be_ids(source: Source, column: str) -> bool:
    """Returns whether the type of a column is one that ids have."""
    return source.columns[column] in (*INTEGERS, *WIDE, *TEXTS)


def _candidates(
    duck: Duck, source: Source, held: Held, named: str, options: TableOptions
) -> list[str]:
    """Returns the columns that may hold ids: by the first rows, each value is there and differs."""
    prepared = options.preparation
    used = {column.name for column in prepared.columns} if prepared is not None else set()
    asked = {name.strip().lower() for one in (*COLUMNS, "split") for name in _texts(options, one)}
    ranks = {
        one: rank(one, named)
        for one in source.columns
        if one not in used and may_be_ids(source, one)
    }
    # What is said of a column that is named like one of ids is a mistake, and is refused later.
    ranks = {one: r for one, r in ranks.items() if r < OTHER or one.strip().lower() not in asked}
    names = list(ranks)
    if len(names) > BLOCK_COLUMNS:  # a wide table: numbers that describe nodes
        names = [one for place, one in enumerate(names) if place < MOST or ranks[one] < OTHER]
    if not names:
        return [held.column]
    # An id that is there twice by mistake is refused later, by its column's name.
    least = 0.0 if options.duplicates != "refuse" else 0.5
    head = f"(FROM {source.relation} LIMIT {HEAD})"
    (rows,) = duck.row(f"SELECT count(*) FROM {head}", where=source.name)
    texts = [f"nullif({quoted(one)}::VARCHAR, '')" for one in names]
    distinct = duck.each(head, texts, ["count(DISTINCT cell)"], where=source.name)
    kept = [
        one
        for one, (count,) in zip(names, distinct, strict=True)
        if count == rows or ((ranks[one] < OTHER or one == held.column) and count >= least * rows)
    ]
    kept = sorted(kept, key=lambda one: ranks[one])[:MOST]
    return kept or [held.column]


def _texts(options: TableOptions, name: str) -> Iterable[str]:
    value = getattr(options, name)
    return (value,) if isinstance(value, str) else value or ()


def _compare(duck: Duck, source: Source, held: Held, ends: Mapping[End, int]) -> None:
    """Counts in one scan which values of which ends each column holds."""
    columns, listed = list(held.ranks), list(ends)
    texts = ", ".join(f"{quoted(one)}::VARCHAR" for one in columns)
    found = duck.rows(
        f"SELECT c, place, count(DISTINCT value) FROM (SELECT unnest([{texts}]) AS v, "
        f"unnest({list(range(len(columns)))}) AS c FROM {source.relation}) "
        "JOIN main.wanted ON v = value GROUP BY c, place",
        where=source.name,
    )
    for column, place, count in found:
        end = listed[place]
        held.shares.setdefault(columns[column], {})[end] = count / ends[end]
    likely = [one for one in columns if one in held.shares]
    held.unique = set(likely)
    if len(likely) > 1:
        counts = ", ".join(f"count(DISTINCT {quoted(one)})" for one in likely)
        rows, *distinct = duck.row(
            f"SELECT count(*), {counts} FROM {source.relation}", where=source.name
        )
        held.unique = {one for one, count in zip(likely, distinct, strict=True) if count == rows}


def choose(tables: Sequence[Held], lists: Sequence["EdgeList"], known: Iterable[End]) -> None:
    """Sets the columns of ids and of ends that join most edges; `known` are ends that were read.

    Raises:
        GraphError: the column that is named like one of ids holds many of the ends, and another
            column holds more; or it has a value twice, and another has not.
    """
    for one in lists:
        _choose_ends(one, tables, [column for text, column in known if text == one.text])
    ends = [(one.text, column) for one in lists for column in one.columns]
    named = {end: _named(end, tables) for end in ends}

    def share(held: Held, column: str, end: End) -> float:
        own = not named[end] or named[end] == held.kind
        return held.share(column, end) if own else 0.0

    def best(held: Held, column: str) -> float:
        return max((share(held, column, end) for end in ends), default=0.0)

    pools = {}
    for held in tables:
        pool = [one for one in held.ranks if one in held.unique and best(held, one) > 0]
        if max((best(held, one) for one in pool), default=0.0) < HALF:
            pool += [one for one in held.ranks if one not in pool and best(held, one) >= HALF]
            # A few values may be the same by chance.
            like_ids = held.ranks.get(held.column, OTHER) < OTHER
            if like_ids or (held.how == "guessed by name" and best(held, held.column) > 0):
                pool = [one for one in pool if one == held.column or best(held, one) >= HALF]
        pools[held.kind] = pool
    chosen = {held.kind: held.column for held in tables}

    def worth(held: Held, column: str) -> tuple[float, float, int]:
        joined = 0.0
        for end in ends:
            picked = {**chosen, held.kind: column}
            joined += max(share(one, picked[one.kind], end) for one in tables)
        return round(joined, 9), round(best(held, column), 9), -held.ranks[column]

    for held in (*tables, *tables):  # twice: what one type holds, another need not
        if held.how != "given" and pools[held.kind]:
            chosen[held.kind] = max(pools[held.kind], key=partial(worth, held))
    for held in tables:
        if held.how == "given" or not pools[held.kind]:
            continue
        if chosen[held.kind] != held.column:
            held.column, held.how = chosen[held.kind], BY_VALUES
        _refuse_doubt(held, max(ends, key=partial(share, held, held.column)))


def _choose_ends(listed: "EdgeList", tables: Sequence[Held], columns: Iterable[str]) -> None:
    """Takes other columns of a list if those that were guessed hold no ids of nodes."""
    if listed.how == "given":
        return

    def held(column: str) -> float:
        end = (listed.text, column)
        return max((one.share(key, end) for one in tables for key in one.ranks), default=0.0)

    if all(held(column) > 0 for column in listed.columns):
        return
    others = [column for column in columns if held(column) >= HALF]
    if len(others) > 1:
        listed.columns, listed.how = (others[0], others[1]), OTHER_ENDS


def _named(end: End, tables: Sequence[Held]) -> str:
    """Returns the type that an end is named after, if its table holds half of the ids."""
    kind = named_type(end[1], [one.kind for one in tables if one.kind])
    fits = any(one.kind == kind and one.share(c, end) >= HALF for one in tables for c in one.ranks)
    return kind if fits else ""


def _refuse_doubt(held: Held, end: End) -> None:
    most, of = held.share(held.column, end), held.kind
    for other in held.ranks:
        less, unique = held.share(other, end), other in held.unique
        if held.ranks[other] >= held.ranks[held.column] or less < HALF:
            continue
        either = " or ".join(option("id_column", one, of=of) for one in (held.column, other))
        twice = f"{' ' if is_command() else ', '}{option('duplicates', 'first')}"
        start = f"{held.table}: which column has the ids?"
        demand(
            unique or held.ranks[other] >= FOREIGN,
            f"{start} Edges name what {held.column!r} holds, once each, and what {other!r} holds, "
            f"some several times; say it: {either}{twice}",
        )
        demand(
            not unique or less >= most,
            f"{start} Of what edges name in {end[1]!r}, {held.column!r} holds {most:.1%} and "
            f"{other!r} {less:.1%}; say it: {either}",
        )


def first_line(tables: Iterable[Held], lists: Iterable["EdgeList"]) -> str:
    """Returns one line on all that was guessed of ids and ends; empty if all was given."""
    ids, ends = dict[str, list[str]](), dict[str, list[str]]()
    for table in (one for one in tables if one.how != "given"):
        ids.setdefault(repr(table.column), []).append(table.kind or table.table)
    for one in (one for one in lists if one.how != "given"):
        columns = f"{one.columns[0]!r} and {one.columns[1]!r}"
        ends.setdefault(columns, []).append(one.text or one.source.name)
    parts = [
        f"{what} in " + ", ".join(f"{columns} of {', '.join(of)}" for columns, of in found.items())
        for what, found in (("ids", ids), ("ends", ends))
        if found
    ]
    options = [option("id_column")] if ids else []
    options += [option("source_column"), option("target_column")] if ends else []
    return f"guessed: {'; '.join(parts)}; otherwise: {', '.join(options)}" if parts else ""
