"""Guesses which columns hold the ids of nodes and the ends of edges, and judges it by the data.

Of the columns of a node table without an empty or repeated value, the one that holds the ends of
the edges has the ids. Names decide where several hold as much: `id`, `TYPE_id`, another `*_id`, any
other, and `name` last. A list's columns of ends are guessed by name, or are its first two, unless
these hold no node's id and others do.

Judged are the first `ROWS` rows of each list of edges: whatever their number, edges that name an
unknown node are found later. Values are compared as texts. That is how ids are compared: integers
only count as integers where all of them are written in the usual form.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from graphcl.errors import GraphError
from graphcl.tabular import columns as table_columns
from graphcl.tabular.columns import FOREIGN, INTEGERS, OTHER, TEXTS, WIDE, named_type
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.features import BLOCK_COLUMNS
from graphcl.tabular.options import COLUMNS, TableOptions
from graphcl.tabular.report import shell
from graphcl.tabular.sources import Source

ROWS = 100_000  # of a list of edges
HEAD = 2_000  # rows of a node table that show which columns may be unique
MOST = 16  # columns of a table that are compared
HALF = 0.5  # a column that holds fewer of the ids that an end names does not speak against another
BY_VALUES = "guessed: it holds the ids that edges name"
OTHER_ENDS = "guessed: they hold ids of nodes"
End = tuple[str, str]  # a list of edges and one of its columns


@dataclass
class Listed:
    """A list of edges.

    Attributes:
        name: of its relation.
        table: the list's name in messages.
        columns: those of both ends.
        how: how they were found.
        values: what the columns hold that may be ends: distinct texts, by column.
    """

    name: str
    table: str
    columns: tuple[str, str]
    how: str
    values: dict[str, Any] = field(default_factory=dict)


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


def list_of_edges(
    duck: Duck,
    source: Source,
    name: str,
    found: tuple[tuple[str, str], str],
    *,
    excluded: Collection[str | None] = (),
) -> Listed:
    """Reads the columns of a list of edges that may be its ends; `found` are those by name."""
    columns, how = found
    listed = Listed(name, source.name, columns, how)
    left = {one.strip().lower() for one in excluded if one}
    likely = [one for one in source.columns if one.strip().lower() not in left]
    wanted = {*columns} if how == "given" else {*columns, *likely[: MOST - 2]}
    picked = [one for one in source.columns if one in wanted and may_be_ids(source, one)]
    if picked:
        rows = _read(duck, source, picked, ROWS)
        listed.values = {one: _distinct(rows.column(place)) for place, one in enumerate(picked)}
    return listed


def node_table(
    duck: Duck, source: Source, kind: str, options: TableOptions, lists: Sequence[Listed]
) -> Held:
    """Reads the columns of a node table that may hold its ids.

    Args:
        duck: the session.
        source: the table.
        kind: its type; empty in a plain graph.
        options: those of this table.
        lists: the lists of edges.
    """
    # In a plain graph, the name of the file is what its nodes are called.
    named = kind or source.name.rpartition("/")[2].partition(".")[0]
    column, how = table_columns.identity(source, options.id_column, named)
    held = Held(kind, source.name, column, how)
    picked = [column]
    if how != "given":
        picked = _candidates(duck, source, held, named, options)
    picked = [one for one in picked if may_be_ids(source, one)]
    held.ranks = {one: table_columns.rank(one, named) for one in picked}
    if picked:
        _compare(duck, source, held, lists)
    if options.duplicates != "refuse":
        held.unique |= {one for one in held.shares if held.ranks[one] < OTHER}
    return held


def may_be_ids(source: Source, column: str) -> bool:
    """Returns whether the type of a column is one that ids have."""
    return source.columns[column] in (*INTEGERS, *WIDE, *TEXTS)


def _read(duck: Duck, source: Source, columns: Sequence[str], rows: int) -> Any:
    import pyarrow

    picked = ", ".join(f"{quoted(one)}::VARCHAR AS c{place}" for place, one in enumerate(columns))
    query = f"SELECT {picked} FROM {source.relation} LIMIT {rows}"
    batches = list(duck.batches(query, where=source.name))
    empty = {f"c{place}": pyarrow.array([], pyarrow.string()) for place in range(len(columns))}
    return pyarrow.Table.from_batches(batches) if batches else pyarrow.table(empty)


def _distinct(values: Any) -> Any:
    import pyarrow.compute

    return pyarrow.compute.unique(values.combine_chunks()).drop_null()


def _candidates(
    duck: Duck, source: Source, held: Held, named: str, options: TableOptions
) -> list[str]:
    """Returns the columns that may hold ids: by the first rows, each value is there and differs."""
    prepared = options.preparation
    used = {column.name for column in prepared.columns} if prepared is not None else set()
    asked = {name.strip().lower() for one in (*COLUMNS, "split") for name in _texts(options, one)}
    ranks = {
        one: table_columns.rank(one, named)
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
    head = _read(duck, source, names, HEAD)
    kept = []
    for place, one in enumerate(names):
        column = head.column(place)
        values = _distinct(column)
        whole = len(values) == len(column) and "" not in values.to_pylist()[:HEAD]
        # An id that is there twice by mistake is refused later, by its column's name.
        often = options.duplicates != "refuse" or 2 * len(values) >= len(column)
        if whole or ((ranks[one] < OTHER or one == held.column) and often):
            kept.append(one)
    kept = sorted(kept, key=lambda one: ranks[one])[:MOST]
    return kept or [held.column]


def _texts(options: TableOptions, name: str) -> Iterable[str]:
    value = getattr(options, name)
    return (value,) if isinstance(value, str) else value or ()


def _compare(duck: Duck, source: Source, held: Held, lists: Sequence[Listed]) -> None:
    """Counts in one scan which values of which ends each column holds."""
    import pyarrow

    ends = [(one.name, column) for one in lists for column in one.values]
    sizes = [len(one.values[column]) for one in lists for column in one.values]
    values = [values for one in lists for values in one.values.values()]
    columns = list(held.ranks)
    if not sum(sizes):
        return
    places = [place for place, size in enumerate(sizes) for _ in range(size)]
    wanted = duck.register(
        "wanted_ends",
        pyarrow.table(
            {
                "place": pyarrow.array(places, pyarrow.int32()),
                "value": pyarrow.concat_arrays([one.cast(pyarrow.string()) for one in values]),
            }
        ),
    )
    texts = ", ".join(f"{quoted(one)}::VARCHAR" for one in columns)
    numbers = ", ".join(map(str, range(len(columns))))
    found = duck.rows(
        f"SELECT c, place, count(DISTINCT value) FROM (SELECT unnest([{texts}]) AS v, "
        f"unnest([{numbers}]) AS c FROM {source.relation}) JOIN {wanted} ON v = value "
        "GROUP BY c, place",
        where=source.name,
    )
    for column, place, count in found:
        shares = held.shares.setdefault(columns[column], {})
        shares[ends[place]] = count / sizes[place]
    likely = [one for one in columns if one in held.shares]
    held.unique = set(likely)
    if len(likely) > 1:
        counts = ", ".join(f"count(DISTINCT {quoted(one)})" for one in likely)
        rows, *distinct = duck.row(
            f"SELECT count(*), {counts} FROM {source.relation}", where=source.name
        )
        held.unique = {one for one, count in zip(likely, distinct, strict=True) if count == rows}


def choose(tables: Sequence[Held], lists: Sequence[Listed]) -> None:
    """Sets the columns of ids and of ends that join most edges.

    Raises:
        GraphError: the column that is named like one of ids holds many of the ends, and another
            column holds more; or it has a value twice, and another has not.
    """
    for one in lists:
        _choose_ends(one, tables)
    ends = [(one.name, column) for one in lists for column in one.columns]
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


def _choose_ends(listed: Listed, tables: Sequence[Held]) -> None:
    """Takes other columns of a list if those that were guessed hold no ids of nodes."""
    if listed.how == "given":
        return

    def held(column: str) -> float:
        end = (listed.name, column)
        return max((one.share(key, end) for one in tables for key in one.ranks), default=0.0)

    if all(held(column) > 0 for column in listed.columns):
        return
    others = [column for column in listed.values if held(column) >= HALF]
    if len(others) > 1:
        listed.columns, listed.how = (others[0], others[1]), OTHER_ENDS


def _named(end: End, tables: Sequence[Held]) -> str:
    """Returns the type that an end is named after, if its table holds half of the ids."""
    kind = named_type(end[1], [one.kind for one in tables if one.kind])
    fits = any(one.kind == kind and one.share(c, end) >= HALF for one in tables for c in one.ranks)
    return kind if fits else ""


def _refuse_doubt(held: Held, end: End) -> None:
    most = held.share(held.column, end)
    for other in held.ranks:
        less = held.share(other, end)
        if held.ranks[other] >= held.ranks[held.column] or less < HALF:
            continue
        given = [
            f"--id-column {f'{held.kind}=' if held.kind else ''}{shell(one)}"
            for one in (held.column, other)
        ]
        if other not in held.unique and held.ranks[other] < FOREIGN:
            raise GraphError(
                f"{held.table}: which column has the ids? Edges name what {held.column!r} holds, "
                f"once each, and what {other!r} holds, some several times; say it: {given[0]} or "
                f"{given[1]} --duplicates first"
            )
        if other in held.unique and less < most:
            raise GraphError(
                f"{held.table}: which column has the ids? Of what edges name in {end[1]!r}, "
                f"{held.column!r} holds {most:.1%} and {other!r} {less:.1%}; say it: "
                f"{given[0]} or {given[1]}"
            )


def first_line(
    tables: Iterable[Held],
    lists: Iterable[Listed],
    types: Mapping[str, Sequence[tuple[str, str]]] | None = None,
) -> str:
    """Returns one line on all that was guessed of ids and ends; empty if all was given.

    `types` are those of the ends of each list, where they were guessed.
    """
    ids = [one for one in tables if one.how != "given"]
    said = [f"{one.column!r}" + (f" of {one.kind or one.table}") for one in ids]
    parts = [f"ids in {', '.join(said)}"] if said else []
    options = ["--id-column"] if said else []
    ends = []
    for one in lists:
        joined = (types or {}).get(one.name, ())
        if one.how == "given" and not joined:
            continue
        listed = ", ".join(f"{first} → {second}" for first, second in joined)
        ends.append(
            f"{one.columns[0]!r} and {one.columns[1]!r} of {one.name or one.table}"
            + (f" ({listed})" if listed else "")
        )
        options += ["--source-column", "--target-column"] if one.how != "given" else []
    parts += [f"ends in {', '.join(ends)}"] if ends else []
    options += ["--edges SOURCE:NAME:TARGET=FILE"] if types and any(types.values()) else []
    if not parts:
        return ""
    return f"guessed: {'; '.join(parts)}; otherwise: {', '.join(dict.fromkeys(options))}"
