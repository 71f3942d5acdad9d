"""Loads edges and nodes into one session, checks them, and numbers the nodes from 0.

Nodes of a node table keep its order. Nodes that only edges name are numbered in sorted order.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.tabular import columns as table_columns
from graphcl.tabular import guessing
from graphcl.tabular import matrix as node_matrix
from graphcl.tabular.beside import Beside
from graphcl.tabular.columns import IdColumn, common_kind
from graphcl.tabular.duck import Duck, is_query, literal, quoted
from graphcl.tabular.edges import check_weights, number_ends, weight_columns
from graphcl.tabular.features import FeaturePart, mostly_zeros
from graphcl.tabular.guessing import Listed
from graphcl.tabular.labels import read_split
from graphcl.tabular.node_table import NodeTable
from graphcl.tabular.nodes import Fitting
from graphcl.tabular.options import Fate, TableOptions, TableReport, counted
from graphcl.tabular.preparation import CATEGORY, DATE, TEXT, Preparation
from graphcl.tabular.prepared import Applying
from graphcl.tabular.problems import UNKNOWN_ADVICE, Problem, collect
from graphcl.tabular.sources import Source, open_source


class NoRowsError(GraphError):
    """A table without rows, where a graph needs some."""


class NumberedTables:
    """The session's tables ``nodes`` (key, number), ``pairs`` (u, v, w) and ``node_rows``.

    Attributes:
        duck: the session.
        options: the caller's options.
        report: what has been found so far.
        edges: the list of edges.
        nodes: the node table, or None.
        matrix: the feature matrix that is given instead of a node table, or None.
        parts: the features, side by side: of columns or a matrix, of tags, and vectors.
        sparse: whether features are sparse: given so, or mostly zeros.
        problems: what is wrong with the tables, as far as it does not end the reading at once.
        id_kind: the DuckDB type of the ids in the resulting graph.
        num_nodes: number of nodes.
    """

    def __init__(
        self,
        duck: Duck,
        edges: Any,
        options: TableOptions,
        on_step: Callable[[str], None],
        identity: tuple[str, str] | None = None,
    ) -> None:
        self.duck, self.options, self.report = duck, options, TableReport()
        self.matrix: node_matrix.NodeMatrix | None = None
        self.parts: list[FeaturePart] = []
        self.sparse = False
        self._prepared: Fitting | Applying | None = None
        self.table: NodeTable | None = None
        self.problems: list[Problem] = []
        self.id_kind = "BIGINT"
        self.edges = self._open(edges, "edges")
        self.nodes = self._open_nodes()
        self.identity, self.labels = ("", ""), tuple[str, ...]()
        self.split: str | None = None
        (start, end), how = self._guess(identity)
        if self.report.first:
            on_step(self.report.first[0])
        on_step("reading the edges")
        ends = self._load_edges(start, end, how)
        on_step("reading the nodes")
        self._load_nodes()
        self.beside = Beside(duck, options, self._open, self.identity[0])
        on_step("numbering the nodes")
        kinds = {column.kind(duck) for column in ends} if self.report.counts.rows else set()
        for column in self.beside.ids:
            self._note_padding(column)
            kinds.add(column.kind(duck))
        if self.nodes is None:
            kind = self._number_nodes_of_edges(kinds)
        else:
            kind = self._number_table(self.nodes, kinds)
        counts = self.report.counts
        counts.dangling = number_ends(duck, kind=kind, weighted=options.weight is not None)
        if counts.dangling:
            self._handle_unknown_nodes(kind)
        (self.num_nodes,) = duck.row("SELECT coalesce(max(number), -1) + 1 FROM nodes")
        (counts.self_loops,) = duck.row("SELECT count(*) FROM pairs WHERE u = v")
        self._complete(kind)
        self._say_features()

    def _open(self, text: Any, role: str) -> Source:
        options = self.options
        return open_source(self.duck, text, role=role, header=options.header, names=options.names)

    def _guess(self, identity: tuple[str, str] | None) -> tuple[tuple[str, str], str]:
        """Sets the column of ids; returns the columns of both ends, and how they were found."""
        source, options = self.edges, self.options
        start, end, how = table_columns.ends(source, options.source_column, options.target_column)
        found = (start, end), how
        if identity is not None:  # the caller has looked at all edges
            self.identity = identity
            return found
        if self.matrix is not None or self.nodes is None:
            if how != "given":
                self.report.first = [guessing.first_line([], [Listed("", source.name, *found)])]
            return found
        excluded = () if options.weight is None else (options.weight,)
        listed = guessing.list_of_edges(self.duck, source, "", found, excluded=excluded)
        held = guessing.node_table(self.duck, self.nodes, "", options, [listed])
        guessing.choose([held], [listed])
        self.identity = held.column, held.how
        line = guessing.first_line([held], [listed])
        self.report.first = [line] if line else []
        return listed.columns, listed.how

    def _load_edges(self, start: str, end: str, how: str) -> list[IdColumn]:
        source, options, duck = self.edges, self.options, self.duck
        picked, used = f"{quoted(start)} AS s, {quoted(end)} AS t", {start, end}
        weight = None
        if options.weight is not None:
            weight = table_columns.find(source, options.weight, "--weight")
            picked += f", {weight_columns(source, weight, options.decimal)}"
            used.add(weight)
            self.report.columns["weight"] = weight
        duck.run(f"CREATE TABLE edges AS SELECT {picked} FROM {source.relation}", where=source.name)
        (self.report.counts.rows,) = duck.row("SELECT count(*) FROM edges")
        ends = [IdColumn(source, start, "edges", "s"), IdColumn(source, end, "edges", "t")]
        for column in ends:
            collect(self.problems, column.check_present, duck)
            self._note_padding(column)
        if weight is not None:
            collect(self.problems, check_weights, duck, source.name, weight, options.decimal)
        self.report.columns |= {"source": start, "target": end}
        self.report.notes.append(f"edges: {source.name}: {start!r} – {end!r} ({how})")
        rest = [name for name in source.columns if name not in used]
        if rest:
            named = table_columns.named(source, table_columns.WEIGHTS)
            advice = f"; --weight {named} would use it" if named in rest else ""
            self.report.notes.append(f"edges: not used: {', '.join(map(repr, rest[:8]))}{advice}")
        return ends

    def _note_padding(self, column: IdColumn) -> None:
        padded = column.padded(self.duck)
        if padded:
            ids = counted(padded, "id begins or ends", "ids begin or end")
            self.report.notes.append(
                f"{column.source.name}: in {column.name!r} {ids} with a space, which is kept"
            )

    def _open_nodes(self) -> Source | None:
        """Opens the node table, if there is one; of a matrix, creates ``node_rows``."""
        given, duck = self.options.nodes, self.duck
        if given is not None and not (isinstance(given, str) and is_query(given)):
            self.matrix = node_matrix.read(given, self.options.node_ids)
        if self.matrix is not None:
            duck.load("node_rows", self.matrix.id_table())
            name = given if isinstance(given, str) else "nodes"
            return Source(name, "node_rows", duck.columns("node_rows"))
        if self.options.node_ids is not None:
            raise GraphError("node_ids: they are for a matrix; a table has a column of ids")
        source = self.edges.nodes
        if given is not None:
            source = self._open(given, "nodes")
            source = source.nodes or source  # a graph file has a node table of its own
        if source is None:
            return None
        self.table = NodeTable(duck, source)
        return self.table.source

    def _load_nodes(self) -> None:
        """Creates ``node_rows`` from the node table, if there is one."""
        if self.table is None:
            return
        # Ids, labels and split alone: features, of which there may be thousands, are read later.
        options, source = self.options, self._once(self.table.source, self.identity[0])
        if source is not self.table.source:
            self.table = NodeTable(self.duck, source)
            source = self.nodes = self.table.source
        self.labels = table_columns.find_all(source, options.label, "--label")
        if options.split is not None:
            self.split = table_columns.find(source, options.split, "--split")
        split = () if self.split is None else (self.split,)
        self.table.narrow(
            "node_rows", list(dict.fromkeys((self.identity[0], *self.labels, *split)))
        )

    def _once(self, source: Source, name: str) -> Source:
        """Returns the node table with one row for each id, if the caller says which to keep."""
        keep = self.options.duplicates
        if keep == "refuse":
            return source
        column = quoted(name)
        rows, ids = self.duck.row(
            f"SELECT count({column}), count(DISTINCT {column}) FROM {source.relation}",
            where=source.name,
        )
        if rows == ids:
            return source
        repeated = counted(rows - ids, "row repeats an id", "rows repeat an id")
        self.report.notes.append(f"nodes: {source.name}: {repeated}: the {keep} of each is kept")
        order = "DESC" if keep == "last" else "ASC"
        place, rank = '"graphcl row"', f"PARTITION BY {column} ORDER BY"
        relation = (
            f"(SELECT * EXCLUDE ({place}) FROM (SELECT *, row_number() OVER () AS {place} FROM "
            f"{source.relation}) QUALIFY {column} IS NULL OR row_number() OVER ({rank} {place} "
            f"{order}) = 1 ORDER BY {place})"
        )
        return replace(source, relation=relation, stable=False)  # so it is kept in the session

    def _number_nodes_of_edges(self, kinds: set[str]) -> str:
        """Numbers the nodes that the edges name, without a node table."""
        for name in ("label", "split", "id_column", "one_hot", "ignore"):
            if getattr(self.options, name):
                option = "--" + name.replace("_", "-")
                raise GraphError(f"{option}: there is no node table; pass --nodes")
        if not self.report.counts.rows and self.beside.tags is None:
            raise NoRowsError(f"{self.edges.name}: has no rows; a graph needs at least one node")
        self.id_kind = kind = common_kind(kinds)
        self.duck.run(
            "CREATE TABLE nodes AS SELECT key, row_number() OVER (ORDER BY key) - 1 AS number "
            f"FROM (SELECT CAST(s AS {kind}) AS key FROM edges UNION "
            f"SELECT CAST(t AS {kind}) FROM edges"
            + (f" UNION SELECT CAST(key AS {kind}) FROM tag_rows)" if self.beside.tags else ")")
        )
        return kind

    def _number_table(self, source: Source, kinds: set[str]) -> str:
        duck = self.duck
        name, how = self.identity if self.table else ("id", "given")
        column = IdColumn(source, name, "node_rows", name)
        if duck.row("SELECT count(*) FROM node_rows") == (0,):
            raise NoRowsError(f"{source.name}: has no rows; a graph needs at least one node")
        collect(self.problems, column.check_present, duck)
        self._note_padding(column)
        self.id_kind = column.kind(duck)
        kind = common_kind(kinds | {self.id_kind})
        duck.run(
            f"CREATE TABLE nodes AS SELECT CAST({quoted(name)} AS {kind}) AS key, "
            "rowid AS number FROM node_rows"
        )
        twice = duck.rows(
            "SELECT key::VARCHAR, min(number) + 1, max(number) + 1, count(*) OVER () FROM nodes "
            "WHERE key IS NOT NULL GROUP BY key HAVING count(*) > 1 ORDER BY 2 LIMIT 1"
        )
        if twice:
            value, first, last, ids = twice[0]
            more = f" ({counted(ids, 'id')} with several rows)" if ids > 1 else ""
            how, fix = "each node has one row", tuple[str, ...]()
            if self.table is not None:
                how = f"{how}: keep one with --duplicates first or --duplicates last"
                fix = ("--duplicates", "first")
            self.problems.append(
                Problem(
                    f"{source.name}: rows {first} and {last} have the same id {value!r} in column "
                    f"{name!r}{more}; {how}",
                    fix,
                )
            )
            # What else is wrong is looked for as if the first were kept.
            duck.run(
                "DELETE FROM nodes WHERE number NOT IN (SELECT min(number) FROM nodes GROUP BY key)"
            )
        self.report.columns["id"] = name
        self._choose_features(source, name, how)
        return kind

    def _choose_features(self, source: Source, identity: str, how: str) -> None:
        options, report = self.options, self.report
        if self.matrix is not None:
            report.notes.append(f"nodes: {source.name}: {self.matrix.x.shape[1]} features")
            report.notes += [self.matrix.note] if self.matrix.note else []
            if options.features != "structural":
                self.parts.append(node_matrix.MatrixFeatures(self.matrix.x))
                self.sparse = scipy.sparse.issparse(self.matrix.x)
            return
        report.notes.append(f"nodes: {source.name}: ids in {identity!r} ({how})")
        ignored = table_columns.find_all(source, options.ignore, "--ignore")
        if self.table is None or options.features == "structural":
            return
        found: Fitting | Applying
        if options.preparation is not None:
            found = Applying(self.duck, self.table, options.preparation)
        else:
            found = self._fit(self.table, {identity, *ignored, *self.labels}, ignored)
        self.problems += found.problems
        if found.features is None:
            return
        self.parts.append(found.features)
        report.preparation, report.filled_values = found.features.preparation, found.filled
        self._prepared, self._ignored = found, ignored

    def _fit(self, table: NodeTable, used: set[str], ignored: Sequence[str]) -> Fitting:
        """Decides what the columns become that are not used for something else."""
        options, source = self.options, table.source
        if self.split is not None:
            used.add(self.split)
        given: dict[str, str] = {}
        for option, kind in (("one_hot", CATEGORY), ("text", TEXT), ("date", DATE)):
            shown = "--" + option.replace("_", "-")
            for name in table_columns.find_all(source, getattr(options, option), shown):
                if name in ignored:  # as a message proposed, after the other option
                    continue
                if name in used or name in given:
                    raise GraphError(f"{source.name}: {shown}: column {name!r} is already used")
                given[name] = kind
        training = self._training_rows(source)
        return Fitting(self.duck, table, options, used=used, given=given, training=training)

    def _training_rows(self, source: Source) -> npt.NDArray[np.bool_] | None:
        """Returns the rows that statistics are taken from; None means all."""
        if not self.options.inductive or self.split is None:
            return None
        return read_split(self.duck, source, self.split)["train_mask"]

    def _complete(self, kind: str) -> None:
        """Adds the features of tags and vectors, and completes the preparation."""
        report, options = self.report, self.options
        training = None if self.nodes is None else self._training_rows(self.nodes)
        if training is not None:  # nodes that only edges name are not in training
            training = np.pad(training, (0, self.num_nodes - len(training)))
        tags, vectors = self.beside.features(kind, self.nodes, training)
        prepared = report.preparation
        for part in (tags, vectors):
            if part is not None:
                self.parts.append(part)
                self.problems += part.problems
                report.notes += part.notes
        if tags is not None:
            prepared = replace(prepared or Preparation(()), tags=tags.tags)
        if vectors is not None:
            prepared = replace(prepared or Preparation(()), vectors=vectors.vectors)
        if prepared is None or self.problems:
            return
        if options.preparation is not None:
            self.sparse = options.preparation.sparse
        else:
            self.sparse = self.sparse or mostly_zeros(self.parts, self.num_nodes)
        report.preparation = replace(prepared, sparse=self.sparse)

    def _say_features(self) -> None:
        """Reports the features, and what became of each column."""
        report, prepared = self.report, self.report.preparation
        if prepared is None or self.problems:
            return
        report.column_features = names = prepared.features
        if names:
            shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            kind = " sparse" if prepared.sparse else ""
            report.notes.append(f"nodes: {counted(len(names), f'{kind} feature'.strip())}: {shown}")
        if self._prepared is not None:
            self._say_columns(self._prepared, prepared)
        for option, one in prepared.beside:
            report.fates.append(Fate(option, one.describe(), len(one.features)))

    def _say_columns(self, found: Fitting | Applying, prepared: Preparation) -> None:
        report = self.report
        assert self.table is not None
        report.notes += found.notes
        became = {column.name: column for column in prepared.columns}
        roles = dict.fromkeys(self._ignored, "left out, as you asked")
        roles |= {self.identity[0]: "the ids"}
        roles |= dict.fromkeys(self.labels, "a label") | dict.fromkeys(
            found.empty, "empty: left out"
        )
        roles |= {} if self.split is None else {self.split: "the split"}
        for name in self.table.source.columns:
            if name in became:
                column = became[name]
                missing = found.missing.get(name, 0)
                fate = Fate(name, column.describe(), len(column.features), missing)
                report.fates.append(fate)
            else:
                report.fates.append(Fate(name, roles.get(name, "left out")))

    def _handle_unknown_nodes(self, kind: str) -> None:
        """Refuses edges to nodes that are not in the node table, drops them, or adds the nodes."""
        duck, counts = self.duck, self.report.counts
        duck.run(
            f"CREATE TABLE unknown_nodes AS SELECT key, min(place) AS place FROM "
            f"(SELECT CAST(s AS {kind}) AS key, rowid AS place FROM edges UNION ALL "
            f"SELECT CAST(t AS {kind}), rowid FROM edges) ANTI JOIN nodes USING (key) "
            "WHERE coalesce(key::VARCHAR, '') <> '' GROUP BY key"  # an empty one is said elsewhere
        )
        (unknown,) = duck.row("SELECT count(*) FROM unknown_nodes")
        if not unknown:
            return
        named = counted(unknown, "unknown node")
        one_end = "IN (SELECT key FROM unknown_nodes)"
        (dangling,) = duck.row(
            f"SELECT count(*) FROM edges WHERE CAST(s AS {kind}) {one_end} OR CAST(t AS {kind}) "
            f"{one_end}"
        )
        rows = counted(dangling, "edge names", "edges name")
        drop = self.options.unknown_edges == "drop"
        if drop and counts.dangling < counts.rows:
            duck.run("DELETE FROM pairs WHERE u IS NULL OR v IS NULL")
            counts.rows -= counts.dangling
            self.report.notes.append(f"edges: {rows} {named}: left out")
            return
        if self.options.unknown_edges != "add":
            value, place = duck.row(
                "SELECT key::VARCHAR, place FROM unknown_nodes ORDER BY place, key LIMIT 1"
            )
            self.problems.append(
                Problem(
                    f"{self.edges.name}: {rows} {named}, first {value!r} in row {place + 1}; "
                    + ("no edge would be left" if drop else UNKNOWN_ADVICE)
                    + (self._same_numbers(value) or self._guessed_ids()),
                    () if drop else ("--unknown-edges", "add"),
                )
            )
            return
        duck.run(
            "INSERT INTO nodes SELECT key, (SELECT count(*) FROM nodes) + "
            "row_number() OVER (ORDER BY key) - 1 FROM unknown_nodes"
        )
        if self.id_kind != kind:
            self.id_kind = "VARCHAR"
        number_ends(duck, kind=kind, weighted=self.options.weight is not None)
        self.report.added_nodes = unknown
        self.report.notes.append(
            f"edges: {rows} {named}: added, with features of zero and without a label"
        )

    def _guessed_ids(self) -> str:
        """Returns what to say of the column of ids if it was guessed."""
        name, how = self.identity
        if how in ("given", "") or self.nodes is None:
            return ""
        others = ", ".join(repr(one) for one in list(self.nodes.columns)[:8] if one != name)
        more = f"; another column is given by --id-column: {others}" if others else ""
        return f"; the ids are those in {name!r} ({how}){more}"

    def _same_numbers(self, unknown: str) -> str:
        """Returns a hint if the node table has the same number, written in another way."""
        written = self.duck.rows(
            "SELECT key::VARCHAR FROM nodes WHERE TRY_CAST(key::VARCHAR AS DOUBLE) = "
            f"TRY_CAST({literal(unknown)} AS DOUBLE) LIMIT 1"
        )
        if not written or self.nodes is None:
            return ""
        said = f"; its ids are written {written[0][0]!r} there and {unknown!r} here"
        digits = unknown.removeprefix("-")
        if not digits.isdecimal() or str(int(digits)) != digits or is_query(self.nodes.name):
            return said  # to read the node table in another way would not help
        column = self.report.columns["id"]
        return (
            f"{said}: with whole numbers, read it as "
            f'--nodes "SELECT * REPLACE (CAST(CAST({quoted(column)} AS DOUBLE) '
            f"AS BIGINT) AS {quoted(column)}) FROM '{self.nodes.name}'\""
        )
