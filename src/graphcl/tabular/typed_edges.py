"""Lists of edges of typed graphs: which types their ends are of, and the numbers of the ends.

The types are guessed from ids: an end is of the type whose ids contain all its values. If several
types do, the name of the column decides (``author``, ``author_id``); if it does not, the user must.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, suggestion
from graphcl.tabular import columns as table_columns
from graphcl.tabular.columns import IdColumn, common_kind, named_type, singular
from graphcl.tabular.duck import Duck, is_query, literal, quoted
from graphcl.tabular.edge_columns import EdgeColumns, EdgeFeatures
from graphcl.tabular.edges import check_weights, weight_columns
from graphcl.tabular.guessing import Listed
from graphcl.tabular.options import TableOptions, counted
from graphcl.tabular.problems import UNKNOWN_ADVICE, Problem, collect, short
from graphcl.tabular.sources import Source, open_source
from graphcl.tabular.type_ids import TypeIds

MOST_RELATIONS = 256  # values of a column that names relations
ENDS = ("s", "t")  # the columns of both ends in the session


@dataclass
class FoundRelation:
    """A relation in a list of edges.

    Attributes:
        name: its name.
        types: of both ends; empty where it could not be found out.
        how: of each end, how its type was found.
        unknown: of each end, ids that the type lacks, in sorted order.
        rows: rows of the list.
        value: what the column that names relations says of it; None if there is no such column.
        features: those of its edges.
    """

    name: str
    types: tuple[str, ...] = ()
    how: tuple[str, ...] = ()
    unknown: list[list[str]] = field(default_factory=lambda: [[], []])
    rows: int = 0
    value: str | None = None
    features: EdgeFeatures = field(default_factory=EdgeFeatures)

    @property
    def key(self) -> str:
        """``source:name:target``."""
        return f"{self.types[0]}:{self.name}:{self.types[1]}"

    @property
    def where(self) -> str:
        """An SQL condition on the rows."""
        return "true" if self.value is None else f"r = {literal(self.value)}"


class EdgeTable:
    """One list of edges in a session of its own.

    Args:
        duck: the session.
        name: of the relation, or ``source:name:target``.
        given: the list, in any form that `open_source` takes.
        options: of the graph.
        types: the ids of each type.
        ends: the columns of both ends, where they have been judged by the data.

    Attributes:
        text: the relation as it was given.
        relations: those in the list; one, or one for each value of the column `options.relation`.
        problems: what is wrong.
        notes: what is said of the list.
        weight: the column of weights, or None.
    """

    def __init__(
        self,
        duck: Duck,
        name: str,
        given: Any,
        options: TableOptions,
        types: Mapping[str, TypeIds],
        ends: Listed | None = None,
    ) -> None:
        self.duck, self.types, self.options, self._ends = duck, types, options, ends
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.text, self.given, (self.said, self.name) = name, given, _said(name, types)
        self.source = open_source(
            duck, given, role="edges", header=options.header, names=options.names
        )
        self.columns: tuple[str, str] = ("", "")
        self.weight: str | None = None
        self._columns = self._load()
        self.relations = self._relations()
        for number, found in enumerate(self.relations):
            found.rows = int(duck.row(f"SELECT count(*) FROM edges WHERE {found.where}")[0])
            self._find_types(found)
            if options.unknown_edges == "drop":
                self._drop_unknown(found)
            if found.types:
                self._prepare(number, found)

    def _prepare(self, number: int, found: FoundRelation) -> None:
        """Decides what the further columns become for the edges of a relation."""
        prepared = self.options.edge_preparations
        found.features = self._further.of(
            number,
            found.where,
            rows=found.rows,
            prepared=None if prepared is None else prepared.get(found.key),
            fixed=prepared is not None,
        )
        self.problems += found.features.problems

    def _load(self) -> list[IdColumn]:
        """Creates ``edges`` (s, t, r, given, w), with further columns."""
        source, options, duck = self.source, self.options, self.duck
        relation, (start, end), how = find_ends(source, options, self.types)
        if self._ends is not None:
            (start, end), how = self._ends.columns, self._ends.how
        rest = [name for name in source.columns if name != relation]
        self.columns = (start, end)
        self.weight = _present(source, options.weight)
        picked = f"{quoted(start)} AS s, {quoted(end)} AS t"
        if relation is not None:
            picked += f", {quoted(relation)}::VARCHAR AS r"
        if self.weight is not None:
            picked += f", {weight_columns(source, self.weight, options.decimal)}"
        further = [name for name in rest if name not in (start, end, self.weight)]
        self._further = EdgeColumns(duck, source, further, options)
        picked += EdgeColumns.picked(further)
        duck.run(f"CREATE TABLE edges AS SELECT {picked} FROM {source.relation}", where=source.name)
        ends = [IdColumn(source, start, "edges", "s"), IdColumn(source, end, "edges", "t")]
        for column in ends:
            collect(self.problems, column.check_present, duck)
        if self.weight is not None:
            collect(
                self.problems, check_weights, duck, source.name, self.weight, self.options.decimal
            )
        self.notes.append(f"{source.name}: {start!r} → {end!r} ({how})")
        return ends

    @property
    def guessed_types(self) -> list[tuple[str, str]]:
        """The types that relations join, as far as they are guessed."""
        found = [one.types for one in self.relations if set(one.how) != {"given"} and one.types]
        return [(first, second) for first, second in dict.fromkeys(found)]

    def _relations(self) -> list[FoundRelation]:
        option = self.options.relation
        if option is None:
            return [FoundRelation(self.name)]
        empty = self.duck.rows(
            "SELECT rowid FROM edges WHERE r IS NULL OR trim(r) = '' ORDER BY rowid LIMIT 1"
        )
        if empty:
            raise GraphError(
                f"{self.source.name}: row {empty[0][0] + 1}: column {option!r} is empty; every row "
                "needs a relation there"
            )
        values = [value for (value,) in self.duck.rows("SELECT DISTINCT r FROM edges ORDER BY r")]
        if len(values) > MOST_RELATIONS:
            raise GraphError(
                f"{self.source.name}: --relation: column {option!r} has {len(values):,} values; "
                f"a graph has at most {MOST_RELATIONS} relations"
            )
        if not values:
            raise GraphError(f"{self.source.name}: has no rows, so it names no relation")
        return [FoundRelation(value.strip(), value=value) for value in values]

    def _find_types(self, found: FoundRelation) -> None:
        if not found.rows:
            if self.said:
                found.types, found.how = self.said, ("given", "given")
                return
            pair = self._example(("SOURCE", "TARGET"))
            self.problems.append(
                Problem(
                    f"{self.source.name}: has no rows, so nothing says which types the relation "
                    f"{found.name!r} joins; leave it out, or say it: --edges {pair}"
                )
            )
            return
        types, how = [], []
        for place in range(2):
            one = self._find_type(found, place)
            types.append(one[0])
            how.append(one[1])
        if all(types):
            found.types, found.how = tuple(types), tuple(how)
            return
        if "ambiguous" in how:
            likely = [one or next(iter(self.types)) for one in types]
            self._refuse_ambiguous(found, likely, how.index("ambiguous"))

    def _find_type(self, found: FoundRelation, place: int) -> tuple[str, str]:
        """Returns the type of an end and how it was found; notes what the type does not know."""
        column, (total, missing) = self.columns[place], self._missing(found, place)
        if self.said:
            name = self.said[place]
            self._note_unknown(found, place, name, missing[name])
            return name, "given"
        complete = [name for name, count in missing.items() if count == 0]
        meant = named_type(column, [name for name in missing if 2 * missing[name] < total])
        if len(complete) == 1 and meant not in ("", complete[0]):
            # Numbers from 1 on are everybody's ids: that another type has them all says little.
            self._note_unknown(found, place, meant, missing[meant], whole=complete[0])
            return meant, f"by the column's name; the ids are also those of {complete[0]}"
        if len(complete) == 1:
            known = "its id is" if total == 1 else f"all {total:,} ids are"
            return complete[0], f"{known} {complete[0]}'s"
        if complete:
            named = named_type(column, complete)
            if named and not self.options.strict:
                others = " and of ".join(name for name in complete if name != named)
                return named, f"by the column's name; the ids are also those of {others}"
            return "", "ambiguous"
        # Most of them, or the type that the column is named after.
        best = min(missing, key=lambda name: missing[name])
        named = named_type(column, [name for name in missing if missing[name] < total])
        likely = named or (best if 2 * missing[best] < total else "")
        if likely:
            self._note_unknown(found, place, likely, missing[likely])
            return likely, f"most of {total:,} ids are {likely}'s"
        self._refuse_unknown(place, total - missing[best], total, best)
        return "", "unknown"

    def _missing(self, found: FoundRelation, place: int) -> tuple[int, dict[str, int]]:
        """Returns the number of ids of an end, and how many of them each type lacks."""
        end, duck = ENDS[place], self.duck
        duck.run(
            f"CREATE OR REPLACE TABLE end_ids AS SELECT {end} AS id, min(rowid) AS place "
            f"FROM edges WHERE {found.where} AND coalesce({end}::VARCHAR, '') <> '' GROUP BY {end}"
        )
        (total,) = duck.row("SELECT count(*) FROM end_ids")
        missing = {}
        for number, (name, ids) in enumerate(self.types.items()):
            kind = self._common(place, ids)
            table = duck.register(f"ids_{number}", ids.table())
            (missing[name],) = duck.row(
                f"SELECT count(*) FROM end_ids ANTI JOIN {table} k "
                f"ON CAST(end_ids.id AS {kind}) = CAST(k.key AS {kind})"
            )
        return int(total), missing

    def _common(self, place: int, ids: TypeIds) -> str:
        """Returns the type in which an end and the ids of a type are compared."""
        return common_kind({self._columns[place].kind(self.duck), ids.kind})

    def _note_unknown(
        self, found: FoundRelation, place: int, name: str, count: int, *, whole: str = ""
    ) -> None:
        """Refuses ids that a type lacks, or keeps them for `add`; the type `whole` has them all."""
        if not count:
            return
        ids = self.types[name]
        kind = self._common(place, ids)
        number = list(self.types).index(name)
        unknown = self.duck.rows(
            f"SELECT id::VARCHAR, place FROM end_ids ANTI JOIN ids_{number} k "
            f"ON CAST(end_ids.id AS {kind}) = CAST(k.key AS {kind}) ORDER BY place, id"
        )
        if self.options.unknown_edges != "refuse":
            found.unknown[place] = sorted(str(one) for one, _ in unknown)
            return
        value, row = unknown[0]
        others = counted(count, f"id is not one of {name}'s", f"ids are not {name}'s")
        also = ""
        if whole and found.value is None:
            ends = [whole if place == end else "TYPE" for end in range(2)]
            pair = self._example((ends[0], ends[1]))
            also = f"; if they are {whole}'s, who has them all: --edges {pair}"
        self.problems.append(
            Problem(
                f"{self.source.name}: column {self.columns[place]!r}: {others}, first "
                f"{short(str(value))} in row {row + 1}; {UNKNOWN_ADVICE}{also}",
                ("--unknown-edges", "add"),
            )
        )

    def _drop_unknown(self, found: FoundRelation) -> None:
        """Leaves out edges of a relation that name unknown nodes; rows stay in their order."""
        import pyarrow

        wrong = []
        for end, unknown in zip(ENDS, found.unknown, strict=True):
            ids = self.duck.register(f"unknown_{end}", pyarrow.table({"id": unknown}))
            wrong += [f"{end}::VARCHAR IN (SELECT id FROM {ids})"] if unknown else []
        if not wrong:
            return
        self.duck.run(
            f"CREATE TABLE edges_kept AS SELECT * FROM edges WHERE NOT (({found.where}) AND "
            f"({' OR '.join(wrong)})) ORDER BY rowid"
        )
        self.duck.run("DROP TABLE edges")
        self.duck.run("ALTER TABLE edges_kept RENAME TO edges")
        (kept,) = self.duck.row(f"SELECT count(*) FROM edges WHERE {found.where}")
        dropped = counted(found.rows - kept, "edge names", "edges name")
        if not kept:
            self.problems.append(
                Problem(f"{self.source.name}: {dropped} unknown nodes; no edge would be left")
            )
        self.notes.append(f"{dropped} unknown nodes: left out")
        found.rows, found.unknown = int(kept), [[], []]

    def _refuse_unknown(self, place: int, known: int, total: int, best: str) -> None:
        column = self.columns[place]
        new = singular(column) if singular(column) not in self.types else "TYPE"
        table = "FILE"
        if isinstance(self.given, str) and not is_query(self.given):
            table = f"\"SELECT DISTINCT {quoted(column)} AS id FROM '{self.given}'\""
        few = f"{known:,} of {total:,} are {best}'s" if known else "none is of a known type"
        self.problems.append(
            Problem(
                f"{self.source.name}: column {column!r}: of which type are its ids? {few} "
                f"(types: {', '.join(self.types)}); give their table: --nodes {new}=FILE, or, if "
                f"they have none: --nodes {new}={table}"
            )
        )

    def _refuse_ambiguous(self, found: FoundRelation, likely: Sequence[str], place: int) -> None:
        _, missing = self._missing(found, place)
        complete = [name for name, count in missing.items() if count == 0]
        message = (
            f"{self.source.name}: column {self.columns[place]!r}: of which type are its ids? They "
            f"are all among those of {' and of '.join(complete)}"
        )
        if found.value is not None:  # a list of several relations
            advice = "the column's name does not say it; give each relation as --edges with a query"
            self.problems.append(Problem(f"{message}; {advice}"))
            return
        pair = self._example(tuple(likely))
        fix = ("--edges", pair) if isinstance(self.given, str) else ()
        self.problems.append(Problem(f"{message}; say it, such as --edges {pair}", fix))

    def _example(self, types: tuple[str, ...]) -> str:
        given = self.given if isinstance(self.given, str) else "FILE"
        return f"{types[0]}:{self.name}:{types[1]}={given}"

    def create_pairs(self, found: FoundRelation) -> None:
        """Creates ``pairs`` (u, v, place[, w]): numbers of nodes, and the row of the relation."""
        several = found.value is not None and found.features.width > 0
        place = "row_number() OVER (ORDER BY edges.rowid) - 1" if several else "edges.rowid"
        weight = ", w" if self.weight is not None else ""
        self.duck.run(
            f"CREATE OR REPLACE TABLE pairs AS SELECT n0.number AS u, n1.number AS v, {place} AS "
            f"place{weight} FROM edges {self._joins(found)} WHERE {found.where}"
        )

    def _joins(self, found: FoundRelation) -> str:
        """Returns SQL that joins the numbers of both ends as ``n0`` and ``n1``."""
        joins = []
        for place, (end, name) in enumerate(zip(ENDS, found.types, strict=True)):
            ids = self.types[name]
            kind = self._common(place, ids)
            table = self.duck.register(f"numbers_{place}", ids.table())
            joins.append(
                f"JOIN {table} n{place} ON CAST({end} AS {kind}) = CAST(n{place}.key AS {kind})"
            )
        return " ".join(joins)

    def numbered(
        self, found: FoundRelation
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64] | None]:
        """Returns the edges of a relation, ``[2, rows]``, in the order of the list; and weights."""
        weight = ", w" if self.weight is not None else ""
        query = (
            f"SELECT n0.number, n1.number{weight} FROM edges {self._joins(found)} "
            f"WHERE {found.where} ORDER BY edges.rowid"
        )
        parts = [
            [column.to_numpy() for column in batch.columns] for batch in self.duck.batches(query)
        ]
        if not parts:
            weights = None if self.weight is None else np.zeros(0)
            return np.zeros((2, 0), np.int64), weights
        listed = [np.concatenate(part) for part in zip(*parts, strict=True)]
        return np.stack(listed[:2]).astype(np.int64), listed[2] if weight else None


def find_ends(
    source: Source, options: TableOptions, types: Iterable[str]
) -> tuple[str | None, tuple[str, str], str]:
    """Returns the column of relations, if any, those of both ends, and how they were found.

    Unlike a plain list, columns that are named after types (``author_id``) come before the first
    two. A column that is given need only be in one of several lists.
    """
    relation = None
    if options.relation is not None:
        relation = table_columns.find(source, options.relation, "--relation")
    rest = {name: kind for name, kind in source.columns.items() if name != relation}
    first, second = (
        _present(source, name) for name in (options.source_column, options.target_column)
    )
    start, end, how = table_columns.ends(replace(source, columns=rest), first, second)
    if how == "guessed: the first two columns" and first is None and second is None:
        named = [column for column in rest if named_type(column, types)]
        if len(named) == 2:
            return relation, (named[0], named[1]), "guessed by name"
    return relation, (start, end), how


def _present(source: Source, column: str | None) -> str | None:
    """Returns a column of this list, or None if the list does not have it."""
    if column is None:
        return None
    known = {name.strip().lower() for name in source.columns}
    return table_columns.find(source, column, "") if column.strip().lower() in known else None


def _said(name: str, types: Mapping[str, TypeIds]) -> tuple[tuple[str, ...], str]:
    """Returns the types that ``author:writes:paper`` gives, if any, and the relation's name."""
    parts = tuple(name.split(":"))
    if len(parts) == 1:
        return (), parts[0]
    if len(parts) != 3 or not all(parts):
        raise GraphError(
            f"--edges {name}: a relation is named NAME, or SOURCE:NAME:TARGET with the types"
        )
    for end in (parts[0], parts[2]):
        if end not in types:
            near = suggestion(end, types)
            raise GraphError(
                f"--edges {':'.join(parts)}: no type {end!r}; the types: {', '.join(types)}{near}"
            )
    return (parts[0], parts[2]), parts[1]
