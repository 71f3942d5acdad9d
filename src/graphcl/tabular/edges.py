"""Lists of edges: their ends, weights and relations, and the numbers of the nodes that they name.

In a typed graph the types of the ends are guessed from ids: an end is of the type whose ids contain
all its values. If several types do, the name of the column decides (``author``, ``author_id``); if
it does not, the user must. A plain graph has one type and one relation, and nothing to guess.

Further columns describe the edges of a typed graph: they become features by the same rules as those
of a node table (`graphcl.tabular.fitting`). Those that are named like labels or splits are left
out: as features they could leak. The last feature is the time since an edge came.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from graphcl.errors import GraphError, counted, demand, option
from graphcl.graphs.relation import EDGE, Key
from graphcl.tabular import cells
from graphcl.tabular import columns as table_columns
from graphcl.tabular.duck import Duck, is_query, literal, quoted
from graphcl.tabular.entries import MAX_NODES
from graphcl.tabular.features import EdgeFeatures
from graphcl.tabular.fitting import ApplyColumns, FitColumns, kinds_given
from graphcl.tabular.nodes import NumberedNodes
from graphcl.tabular.options import TableOptions, having, split_relation
from graphcl.tabular.preparation import AGE, Column
from graphcl.tabular.report import (
    Problem,
    TableReport,
    Usual,
    collect,
    listed,
    short,
    unknown_advice,
)
from graphcl.tabular.respelling import Table, describe_respelled, find_respelled
from graphcl.tabular.sources import Source
from graphcl.tabular.times import TIME

MOST_RELATIONS = 256  # values of a column that names relations
ENDS = ("s", "t")  # the columns of both ends in the session


@dataclass
class FoundRelation:
    """A relation in a list of edges.

    Attributes:
        name: its name.
        number: its place in the list.
        types: of both ends; empty where it could not be found out.
        how: of each end, how its type was found.
        rows: rows of the list.
        value: what the column that names relations says of it; None if there is no such column.
        features: those of its edges.
    """

    name: str
    number: int = 0
    types: tuple[str, ...] = ()
    how: tuple[str, ...] = ()
    rows: int = 0
    value: str | None = None
    features: EdgeFeatures = field(default_factory=EdgeFeatures)

    @property
    def key(self) -> Key:
        """The types of its ends, with its name between them."""
        return (self.types[0], self.name, self.types[1]) if self.name else EDGE

    @property
    def where(self) -> str:
        """An SQL condition on the rows."""
        return "true" if self.value is None else f"r = {literal(self.value)}"


class EdgeList:
    """One list of edges: the session's tables ``edges`` and, of one relation, ``pairs``.

    Args:
        duck: a session of its own.
        text: the relation as it was given: its name, or ``source:name:target``; empty in a plain
            graph.
        given: the list, as the user names it.
        source: the list.
        options: of this list.
        types: the names of the types.
        age: what turns the time of an edge into a feature; None without times.

    Attributes:
        said: the types of both ends, if they are given.
        relation_column: the one that names relations, or None.
        columns: those of both ends; `weight` is that of weights, or None.
        how: how the columns of ends were found.
        rows: how many it has.
        dangling: in a plain graph, rows that name a node that is not in the node table.
        types: the nodes of each type, once `find_relations` has been called.
        relations: those in the list; one, or one for each value of the column `options.relation`.
        problems: what is wrong; `notes` are what is said of the list.
    """

    def __init__(
        self,
        duck: Duck,
        text: str,
        given: Any,
        source: Source,
        options: TableOptions,
        types: Iterable[str],
        age: Column | None = None,
    ) -> None:
        self.duck, self.text, self.given, self.source = duck, text, given, source
        self._file = given if isinstance(given, str) else "FILE"  # as messages name it
        self.options, self.typed, self.age = options, options.is_typed, age
        self.said, self.name = split_relation(text, list(types))
        self.relation_column, self.columns, self.how = find_ends(source, options, types)
        given_weight = [] if options.weight is None else [options.weight]
        self.weight = table_columns.named(source, given_weight)
        if given_weight and not self.typed:
            self.weight = table_columns.find(source, options.weight, "weight")
        self.rows = self.dangling = 0
        self.relations: list[FoundRelation] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._further: list[str] = []  # columns that describe edges: ``c0``, ``c1``, … of ``edges``

    def load(self, report: TableReport) -> None:
        """Creates ``edges`` (s, t, r, given, w), with further columns; the ends were judged."""
        source, options, duck = self.source, self.options, self.duck
        (start, end), weight = self.columns, self.weight
        rest = [
            name
            for name in source.columns
            if name not in (start, end, weight, self.relation_column, TIME)
        ]
        self._further = rest if self.typed else []
        picked = {"s": quoted(start), "t": quoted(end)}
        picked |= {f"c{place}": quoted(name) for place, name in enumerate(self._further)}
        if self.relation_column is not None:
            picked["r"] = f"{quoted(self.relation_column)}::VARCHAR"
        if weight is not None:
            number = cells.plain(cells.with_mark(source, weight, options.decimal), weight)
            picked |= {"given": quoted(weight), "w": f"TRY_CAST({number} AS DOUBLE)"}
        if source.time:
            picked["m"] = quoted(TIME)
        columns = ", ".join(f"{sql} AS {name}" for name, sql in picked.items())
        duck.run(
            f"CREATE TABLE edges AS SELECT {columns} FROM {source.relation}", where=source.name
        )
        self.rows = duck.count("edges")
        for column in self.ids:
            collect(self.problems, column.check_present, duck)
            report.notes += column.padding(duck)
        if weight is not None:
            collect(self.problems, self._check_weights, weight)
        mark = "→" if self.typed else "–"
        self.notes.append(Usual(f"{source.name}: {start!r} {mark} {end!r} ({self.how})"))
        if not self.typed:
            report.columns |= {} if weight is None else {"weight": weight}
            report.columns |= {"source": start, "target": end}
            named = table_columns.named(source, table_columns.WEIGHTS)
            advice = f"; {option('weight', named)} would use it" if named in rest else ""
            unused = ", ".join(map(repr, rest[:8]))
            self.notes += [f"not used: {unused}{advice}"] if rest else []

    def _check_weights(self, name: str) -> None:
        """Refuses weights that are not positive numbers."""
        wrong = "w IS NULL OR NOT isfinite(w) OR w <= 0"
        for row, value in self.duck.first("edges", wrong, "given"):
            shown = "is missing" if value in (None, "") else f"is {value!r}"
            comma = not self.options.decimal and "," in (value or "")
            raise GraphError(
                f"{self.source.name}: row {row}: the weight in column {name!r} {shown}; "
                "weights are positive numbers"
                + (f"; with decimal commas: {option('decimal', ',')}" if comma else "")
            )

    @cached_property
    def ids(self) -> tuple[table_columns.IdColumn, table_columns.IdColumn]:
        """The columns of both ends, as all branches of the session name them."""
        table = f"{self.duck.schema}.edges"
        first, second = self.columns
        return table_columns.IdColumn(self.source, first, table, "s"), table_columns.IdColumn(
            self.source, second, table, "t"
        )

    @cached_property
    def kinds(self) -> tuple[str, str]:
        """The types of the ids of both ends; without rows their columns may have no type."""
        if not self.rows:
            return "BIGINT", "BIGINT"
        return self.ids[0].kind(self.duck), self.ids[1].kind(self.duck)

    # Relations and the types of their ends

    def find_relations(self, types: Mapping[str, NumberedNodes]) -> None:
        """Finds relations, the types of their ends, nodes that are unknown, and features."""
        self.types = types
        self.duck.run("CREATE TABLE unknown (relation INT, place INT, id VARCHAR, row BIGINT)")
        self.relations = self._list_relations()
        for found in self.relations:
            found.features.age = None if self.typed else self.age
            found.rows = self.duck.count(f"edges WHERE {found.where}")
            self._find_types(found)
            if found.types and found.rows and self.typed:
                found.features = self._find_features(found)

    def _find_features(self, found: FoundRelation) -> EdgeFeatures:
        """Finds what the further columns of a relation's edges become, and their times."""
        duck, names, options = self.duck, self._further, self.options
        prepared, aged = (options.edge_preparations or {}).get(":".join(found.key)), self.age
        if prepared is not None:
            kept = tuple(one for one in prepared.columns if one.kind != AGE)
            if kept == prepared.columns:
                aged = None
            elif aged is None:
                self._wrong(
                    f"has no times {prepared.columns[-1].name!r}, which edges had in training"
                )
            prepared = replace(prepared, columns=kept) if kept else None
        elif options.edge_preparations is not None:
            aged = None
        if prepared is None and (options.edge_preparations is not None or not names):
            return EdgeFeatures(age=aged)
        view, left = f"edge_columns_{found.number}", dict[str, str]()
        columns = ", ".join(f"c{place} AS {quoted(name)}" for place, name in enumerate(names))
        duck.run(
            f"CREATE VIEW {view} AS SELECT {columns or 'rowid'} FROM edges WHERE {found.where}"
        )
        kinds = {name: self.source.columns[name] for name in names}
        source = replace(self.source, relation=view, columns=kinds, nodes=None, stable=True)
        session = f"edges_{found.number}_"
        if prepared is not None:
            fitted: Any = ApplyColumns(duck, source, prepared, session)
        else:
            leaks = {name: table_columns.looks_like(self.source, name) for name in names}
            left = {name: f"named like a {what}: left out" for name, what in leaks.items() if what}
            left |= dict.fromkeys(self._named("ignore"), "left out, as you asked")
            given, plain = kinds_given(source.name, self._named), replace(options, split=None)
            how: Any = {"used": set(left) - set(given), "given": given, "leaks": False}
            fitted = FitColumns(duck, source, plain, session=session, **how)
        self.problems += fitted.problems
        named = [pair for pair in left.items() if pair[1].startswith("named")]
        notes = [f"column {name!r} is {why}" for name, why in named] + fitted.notes
        features, fates = fitted.features, fitted.outcomes(names, left)
        if fitted.problems or not features.width:
            return EdgeFeatures(None, notes, fates, aged)
        made = features.preparation.features
        notes.insert(0, Usual(f"{counted(len(made), 'feature')} of each edge: {listed(made)}"))
        weight = [name for name in names if name.strip().lower() in table_columns.WEIGHTS]
        for name in set(weight[:1]) - set(left):
            notes.append(f"{name!r} is a feature; {option('weight', name)} makes it a weight")
        return EdgeFeatures(features, notes, fates, aged)

    def _named(self, option: str) -> list[str]:
        """Returns the further columns that an option names; others are of other tables."""
        return having(self._further, getattr(self.options, option))

    def _list_relations(self) -> list[FoundRelation]:
        column, where = self.options.relation, self.source.name
        if column is None:
            return [FoundRelation(self.name)]
        for row, _ in self.duck.first("edges", "r IS NULL OR trim(r) = ''"):
            raise GraphError(
                f"{where}: row {row}: column {column!r} is empty; every row needs a relation there"
            )
        values = [value for (value,) in self.duck.rows("SELECT DISTINCT r FROM edges ORDER BY r")]
        demand(
            len(values) <= MOST_RELATIONS,
            f"{where}: {option('relation')}: column {column!r} has {len(values):,} values; a graph "
            f"has at most {MOST_RELATIONS} relations",
        )
        demand(values, f"{where}: has no rows, so it names no relation")
        return [FoundRelation(one.strip(), place, value=one) for place, one in enumerate(values)]

    def _find_types(self, found: FoundRelation) -> None:
        """Finds the types of both ends, unless they are given, and then the nodes that lack."""
        if not self.typed or self.said:
            found.types = self.said or (next(iter(self.types)),) * 2
            found.how = ("given", "given")
        elif not found.rows:
            self._wrong(
                "has no rows, so nothing says which types the relation "
                f"{found.name!r} joins; leave it out, or say it: "
                f"{option('edges', self._file, of=self._pair(('SOURCE', 'TARGET')))}"
            )
            return
        else:
            types, how = zip(*(self._find_type(found, place) for place in range(2)), strict=True)
            if not all(types):
                if "ambiguous" in how:
                    likely = [one or next(iter(self.types)) for one in types]
                    self._refuse_ambiguous(found, likely, how.index("ambiguous"))
                return
            found.types, found.how = types, how
        self._drop_later(found)
        self.dangling = self.create_pairs(found)
        if self.dangling:  # most lists name no unknown node
            self._settle_unknown(found)

    def _find_type(self, found: FoundRelation, place: int) -> tuple[str, str]:
        """Returns the type of an end and how it was found."""
        column, (total, missing) = self.columns[place], self._missing(found, place)
        complete = [name for name, count in missing.items() if count == 0]
        called = table_columns.named_type(column, self.types)
        if called and called not in complete and (alike := self._respelled(found, [place], called)):
            self._wrong(f"column {column!r}: {alike}")
            return "", "written otherwise"
        if len(complete) == 1:
            # Numbers from 1 on are everybody's ids: that another type has them all says little.
            meant = table_columns.named_type(
                column, [name for name in missing if 2 * missing[name] < total]
            )
            if meant in ("", complete[0]):
                known = "its id is" if total == 1 else f"all {total:,} ids are"
                return complete[0], f"{known} {complete[0]}'s"
        else:
            meant = "" if self.options.strict else table_columns.named_type(column, complete)
        if complete:
            others = " and of ".join(name for name in complete if name != meant)
            how = f"by the column's name; the ids are also those of {others}"
            return meant, how if meant else "ambiguous"
        # Most of them, or the type that the column is named after.
        best = min(missing, key=lambda name: missing[name])
        named = table_columns.named_type(
            column, [name for name in missing if missing[name] < total]
        )
        likely = named or (best if 2 * missing[best] < total else "")
        if not likely:
            self._refuse_unknown(found, place, total - missing[best], total, best)
        return likely, f"most of {total:,} ids are {likely}'s"

    def _list_ids(self, found: FoundRelation, place: int) -> None:
        """Creates ``end_ids``: the different ids of an end, and the first row of each."""
        end = ENDS[place]
        self.duck.run(
            f"CREATE OR REPLACE TABLE end_ids AS SELECT {end} AS id, min(rowid) AS row "
            f"FROM edges WHERE {found.where} AND coalesce({end}::VARCHAR, '') <> '' GROUP BY {end}"
        )

    def _lacking(self, place: int, name: str) -> str:
        """Returns SQL for the rows of ``end_ids`` that are not ids of a type."""
        nodes = self.types[name]
        kind = table_columns.common_kind({self.kinds[place], nodes.key_kind})
        return (
            f"(SELECT * FROM end_ids WHERE id::VARCHAR NOT IN {nodes.later}) AS ends "
            f"ANTI JOIN {nodes.table} k ON CAST(ends.id AS {kind}) = CAST(k.key AS {kind})"
        )

    def _missing(self, found: FoundRelation, place: int) -> tuple[int, dict[str, int]]:
        """Returns the number of ids of an end, and how many of them each type lacks."""
        self._list_ids(found, place)
        missing = {name: self.duck.count(self._lacking(place, name)) for name in self.types}
        return self.duck.count("end_ids"), missing

    # Nodes that only edges name

    def unknown(self, kind: str) -> str:
        """Returns SQL for the ids that only these edges name, of one type; empty if none are."""
        table = f"{self.duck.schema}.unknown"
        ends = [
            f"(relation = {one.number} AND place = {place})"
            for one in self.relations
            for place, own in enumerate(one.types)
            if own == kind
        ]
        query = f"SELECT id FROM {table} WHERE {' OR '.join(ends) or 'false'}"
        return query if self.duck.rows(f"{query} LIMIT 1") else ""

    def _settle_unknown(self, found: FoundRelation) -> None:
        """Lists unknown nodes in ``unknown``, and leaves their edges out, or refuses them."""
        for place, kind in enumerate(found.types):
            self._list_ids(found, place)
            self.duck.run(
                f"INSERT INTO unknown SELECT {found.number}, {place}, id::VARCHAR, row "
                f"FROM {self._lacking(place, kind)}"
            )
        own, drop = f"relation = {found.number}", self.options.unknown_edges == "drop"
        named = " OR ".join(
            f"{end}::VARCHAR IN (SELECT id FROM unknown WHERE {own} AND place = {place})"
            for place, end in enumerate(ENDS)
        )
        edges, names = f"({found.where}) AND ({named})", f"unknown WHERE {own}"
        count = self.duck.count(f"edges WHERE {edges}")
        if not count:  # ids are empty, which is said elsewhere
            return
        (nodes,) = self.duck.row(f"SELECT count(DISTINCT id) FROM {names}")
        said = f"{counted(count, 'edge names', 'edges name')} {counted(nodes, 'unknown node')}"
        if drop or self.options.unknown_edges == "add":
            each = {
                kind: [end for end in range(2) if found.types[end] == kind] for kind in self.types
            }
            alike = [self._respelled(found, places, kind) for kind, places in each.items()]
            self.notes += [f"{self.source.name}: {one}" for one in alike if one]
        if drop and count < found.rows:
            self.notes.append(f"{said}: left out")
            self._drop(found, edges)
            self.duck.run(f"DELETE FROM {names}")
            self.create_pairs(found)
        elif self.options.unknown_edges != "add":
            self._refuse_edges(found, said, "no edge would be left" if drop else "")

    def _refuse_edges(self, found: FoundRelation, said: str, why: str) -> None:
        """Refuses edges to nodes that are unknown, with what may have gone wrong."""
        value, row, place = self.duck.row(
            f"SELECT id, row, place FROM unknown WHERE relation = {found.number} ORDER BY row, id"
        )
        nodes, of = self.types[found.types[place]], ""
        if self.typed:
            of = f" (column {self.columns[place]!r}: not one of {found.types[place]}'s)"
            whole = [name for name, count in self._missing(found, place)[1].items() if not count]
            ends = [whole[0] if whole and place == end else "TYPE" for end in range(2)]
            if whole and found.value is None:
                how = f"who has them all: {option('edges', self._file, of=self._pair(ends))}"
                why = f"{why or unknown_advice()}; if they are {whole[0]}'s, {how}"
        start = f"{said}{of}, first {short(value)} in row {row + 1}"
        ends = [end for end, kind in enumerate(found.types) if kind == found.types[place]]
        if respelled := self._respelled(found, ends, found.types[place]):
            self._wrong(f"{start}; {respelled}")  # nodes that edges add would be second ones
            return
        self._wrong(
            f"{start}; {why or unknown_advice()}{nodes.guessed_ids()}",
            () if self.options.unknown_edges == "drop" else ("unknown_edges", "add"),
        )

    def _respelled(self, found: FoundRelation, ends: Iterable[int], kind: str) -> str:
        """Returns what to say if ids at some ends are those of a type but for their zeros.

        It is empty if they are not, or if most of those that the type lacks are others.
        """
        nodes, columns, alike, lacking = self.types[kind], [], None, 0
        if nodes.source is None:
            return ""
        for place in ends:
            self._list_ids(found, place)
            missing = self._lacking(place, kind)
            respelled = find_respelled(self.duck, missing, nodes.table)
            if respelled is not None:
                columns.append(self.columns[place])
                lacking += self.duck.count(missing)
                count = respelled.count + (0 if alike is None else alike.count)
                alike = replace(alike or respelled, count=count)
        if alike is None or 2 * alike.count < lacking:
            return ""
        listed = Table(self.given, self.source, "edges", self.text, columns)
        return describe_respelled(alike, listed, nodes.as_given(kind))

    def _drop(self, found: FoundRelation, condition: str) -> None:
        """Leaves out edges where a condition holds; the others stay in their order."""
        self.duck.run(
            f"CREATE TABLE edges_kept AS SELECT * FROM edges WHERE NOT coalesce({condition}, false)"
            " ORDER BY rowid"
        )
        self.duck.run("DROP TABLE edges; ALTER TABLE edges_kept RENAME TO edges")
        self.rows = self.duck.count("edges")
        found.rows = self.duck.count(f"edges WHERE {found.where}")

    def _drop_later(self, found: FoundRelation) -> None:
        """Leaves out edges of a relation whose ends came later than the graph is of."""
        ends = zip(ENDS, found.types, strict=True)
        named = [f"{end}::VARCHAR IN {self.types[kind].later}" for end, kind in ends]
        later = f"({found.where}) AND ({' OR '.join(named)})"
        if edges := self.duck.count(f"edges WHERE {later}"):
            self._drop(found, later)
            said = counted(edges, "edge names a node that is", "edges name nodes that are")
            self.notes.append(f"{said} later than {self.options.until}: left out")

    def _refuse_unknown(
        self, found: FoundRelation, place: int, known: int, total: int, best: str
    ) -> None:
        column = self.columns[place]
        for kind in self.types:
            if alike := self._respelled(found, [place], kind):
                self._wrong(f"column {column!r}: {alike}")
                return
        new = (
            table_columns.singular(column)
            if table_columns.singular(column) not in self.types
            else "TYPE"
        )
        own = option("nodes", "FILE", of=new)
        if isinstance(self.given, str) and not is_query(self.given):
            query = f"SELECT DISTINCT {quoted(column)} AS id FROM '{self.given}'"
            own = option("nodes", query, of=new, written=f'"{query}"')
        few = f"{known:,} of {total:,} are {best}'s" if known else "none is of a known type"
        self._wrong(
            f"column {column!r}: of which type are its ids? {few} "
            f"(types: {', '.join(self.types)}); give their table: "
            f"{option('nodes', 'FILE', of=new)}, or, if they have none: {own}"
        )

    def _refuse_ambiguous(self, found: FoundRelation, likely: Sequence[str], place: int) -> None:
        _, missing = self._missing(found, place)
        complete = [name for name, count in missing.items() if count == 0]
        pair = self._pair(likely)
        advice = f"say it, such as {option('edges', self._file, of=pair)}"
        if found.value is not None:  # a list of several relations
            every = f"give each relation as {option('edges')} with a query"
            advice = f"the column's name does not say it; {every}"
        given = isinstance(self.given, str) and found.value is None
        self._wrong(
            f"column {self.columns[place]!r}: of which type are its ids? They are all among those "
            f"of {' and of '.join(complete)}; {advice}",
            ("edges", f"{pair}={self.given}") if given else (),
        )

    def _wrong(self, message: str, fix: tuple[str, str] | tuple[()] = ()) -> None:
        self.problems.append(Problem(f"{self.source.name}: {message}", fix))

    def _pair(self, types: Sequence[str]) -> str:
        return f"{types[0]}:{self.name}:{types[1]}"

    # Numbers

    def create_pairs(self, found: FoundRelation) -> int:
        """Creates ``pairs`` (u, v, w), in a typed graph with each edge's ``place`` in the relation.

        Returns:
            The number of rows that name an unknown node; the numbers of unknown nodes are NULL.
        """
        ends = [self._numbered(place, self.types[kind]) for place, kind in enumerate(found.types)]
        picked = f"{ends[0][0]} AS u, {ends[1][0]} AS v"
        if self.typed:
            several = "row_number() OVER (ORDER BY edges.rowid) - 1"
            picked += f", {'edges.rowid' if found.value is None else several} AS place"
        picked += ", w" if self.weight is not None else ""
        picked += ", m" if self.source.time else ""
        self.duck.run("SET preserve_insertion_order = false")  # faster; pairs are sorted later
        self.duck.run(
            f"CREATE OR REPLACE TABLE pairs AS SELECT {picked} FROM edges {ends[0][1]} "
            f"{ends[1][1]} WHERE {found.where}"
        )
        self.duck.run("SET preserve_insertion_order = true")
        return self.duck.count("pairs WHERE u IS NULL OR v IS NULL")

    def _numbered(self, place: int, nodes: NumberedNodes) -> tuple[str, str]:
        """Returns SQL for the number of an end, and for the join that it takes."""
        demand(
            nodes.num_nodes < MAX_NODES,
            f"tables: {nodes.num_nodes:,} nodes; at most {MAX_NODES - 1:,} can be numbered",
        )
        end, kind = ENDS[place], table_columns.common_kind({self.kinds[place], nodes.key_kind})
        if nodes.in_order and kind == "BIGINT":  # the ids are the numbers
            number = f"CAST({end} AS BIGINT)"
            return f"CASE WHEN {number} BETWEEN 0 AND {nodes.num_nodes - 1} THEN {number} END", ""
        same = f"CAST({end} AS {kind}) = CAST(n{place}.key AS {kind})"
        return f"n{place}.number", f"LEFT JOIN {nodes.table} n{place} ON {same}"


def find_ends(
    source: Source, options: TableOptions, types: Iterable[str]
) -> tuple[str | None, tuple[str, str], str]:
    """Returns the column of relations, if any, those of both ends, and how they were found.

    Columns that are named after types (``author_id``) come before the first two, and one that is
    given need only be in one of several lists, unlike in a plain list.
    """
    named = options.relation
    relation = None if named is None else table_columns.find(source, named, "relation")
    rest = {name: kind for name, kind in source.columns.items() if name != relation}
    first, second = options.source_column, options.target_column
    if options.is_typed:
        first, second = (one and table_columns.named(source, [one]) for one in (first, second))
    start, end, how = table_columns.ends(replace(source, columns=rest), first, second)
    if how == "guessed: the first two columns" and first is None and second is None:
        like = [column for column in rest if table_columns.named_type(column, types)]
        if len(like) == 2:
            return relation, (like[0], like[1]), "guessed by name"
    return relation, (start, end), how
