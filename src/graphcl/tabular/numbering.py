"""Loads edges and nodes into one session, checks them, and numbers the nodes from 0.

Nodes of a node table keep its order. Nodes that only edges name are numbered in sorted order.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError
from graphcl.tabular import columns as table_columns
from graphcl.tabular import matrix as node_matrix
from graphcl.tabular.beside import Beside
from graphcl.tabular.columns import IdColumn, common_kind
from graphcl.tabular.duck import Duck, is_query, literal, quoted
from graphcl.tabular.edges import check_weights, number_ends
from graphcl.tabular.features import FeaturePart, mostly_zeros
from graphcl.tabular.labels import read_split
from graphcl.tabular.node_table import NodeTable
from graphcl.tabular.nodes import Fitting
from graphcl.tabular.options import Fate, TableOptions, TableReport, counted
from graphcl.tabular.preparation import CATEGORY, DATE, TEXT, Preparation
from graphcl.tabular.prepared import Applying
from graphcl.tabular.problems import Problem
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
        self, duck: Duck, edges: Any, options: TableOptions, on_step: Callable[[str], None]
    ) -> None:
        self.duck, self.options, self.report = duck, options, TableReport()
        self.matrix: node_matrix.NodeMatrix | None = None
        self.parts: list[FeaturePart] = []
        self.sparse = False
        self._prepared: Fitting | Applying | None = None
        self.table: NodeTable | None = None
        self.problems: list[Problem] = []
        self.id_kind = "BIGINT"
        on_step("reading the edges")
        self.edges = self._open(edges, "edges")
        ends = self._load_edges()
        on_step("reading the nodes")
        self.identity, self.labels = ("", ""), tuple[str, ...]()
        self.split: str | None = None
        self.nodes = self._load_nodes()
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
        (self.num_nodes,) = duck.row("SELECT count(*) FROM nodes")
        (counts.self_loops,) = duck.row("SELECT count(*) FROM pairs WHERE u = v")
        self._complete(kind)
        self._say_features()

    def _open(self, text: Any, role: str) -> Source:
        options = self.options
        return open_source(self.duck, text, role=role, header=options.header, names=options.names)

    def _load_edges(self) -> list[IdColumn]:
        source, options, duck = self.edges, self.options, self.duck
        start, end, how = table_columns.ends(source, options.source_column, options.target_column)
        picked, used = f"{quoted(start)} AS s, {quoted(end)} AS t", {start, end}
        weight = None
        if options.weight is not None:
            weight = table_columns.find(source, options.weight, "--weight")
            picked += f", {quoted(weight)} AS given, TRY_CAST({quoted(weight)} AS DOUBLE) AS w"
            used.add(weight)
            self.report.columns["weight"] = weight
        duck.run(f"CREATE TABLE edges AS SELECT {picked} FROM {source.relation}", where=source.name)
        (self.report.counts.rows,) = duck.row("SELECT count(*) FROM edges")
        ends = [IdColumn(source, start, "edges", "s"), IdColumn(source, end, "edges", "t")]
        for column in ends:
            column.check_present(duck)
            self._note_padding(column)
        if weight is not None:
            check_weights(duck, source.name, weight)
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

    def _load_nodes(self) -> Source | None:
        """Creates ``node_rows`` from the node table, if there is one."""
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
        # Ids, labels and split alone: features, of which there may be thousands, are read later.
        options, self.table = self.options, NodeTable(duck, source)
        source = self.table.source
        self.identity = table_columns.identity(source, options.id_column)
        self.labels = table_columns.find_all(source, options.label, "--label")
        if options.split is not None:
            self.split = table_columns.find(source, options.split, "--split")
        split = () if self.split is None else (self.split,)
        self.table.narrow(
            "node_rows", list(dict.fromkeys((self.identity[0], *self.labels, *split)))
        )
        return source

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
        column.check_present(duck)
        self._note_padding(column)
        self.id_kind = column.kind(duck)
        kind = common_kind(kinds | {self.id_kind})
        duck.run(
            f"CREATE TABLE nodes AS SELECT CAST({quoted(name)} AS {kind}) AS key, "
            "rowid AS number FROM node_rows"
        )
        twice = duck.rows(
            "SELECT key::VARCHAR, min(number) + 1, max(number) + 1 FROM nodes GROUP BY key "
            "HAVING count(*) > 1 ORDER BY 2 LIMIT 1"
        )
        if twice:
            value, first, last = twice[0]
            raise GraphError(
                f"{source.name}: rows {first} and {last} have the same id {value!r} in column "
                f"{name!r}; each node has one row"
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
            found = self._fit(self.table, {identity, *ignored, *self.labels})
        self.problems += found.problems
        if found.features is None:
            return
        self.parts.append(found.features)
        report.preparation, report.filled_values = found.features.preparation, found.filled
        self._prepared, self._ignored = found, ignored

    def _fit(self, table: NodeTable, used: set[str]) -> Fitting:
        """Decides what the columns become that are not used for something else."""
        options, source = self.options, table.source
        if self.split is not None:
            used.add(self.split)
        given: dict[str, str] = {}
        for option, kind in (("one_hot", CATEGORY), ("text", TEXT), ("date", DATE)):
            shown = "--" + option.replace("_", "-")
            for name in table_columns.find_all(source, getattr(options, option), shown):
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
        if prepared is None or self.problems or options.like:
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
        """Refuses edges to nodes that are not in the node table, or adds those nodes."""
        duck, counts = self.duck, self.report.counts
        duck.run(
            f"CREATE TABLE unknown_nodes AS SELECT key, min(place) AS place FROM "
            f"(SELECT CAST(s AS {kind}) AS key, rowid AS place FROM edges UNION ALL "
            f"SELECT CAST(t AS {kind}), rowid FROM edges) ANTI JOIN nodes USING (key) GROUP BY key"
        )
        (unknown,) = duck.row("SELECT count(*) FROM unknown_nodes")
        named = counted(unknown, "unknown node")
        rows = counted(counts.dangling, "edge names", "edges name")
        if not self.options.add_missing_nodes:
            value, place = duck.row(
                "SELECT key::VARCHAR, place FROM unknown_nodes ORDER BY place, key LIMIT 1"
            )
            self.problems.append(
                Problem(
                    f"{self.edges.name}: {rows} {named}, first {value!r} in row {place + 1}; add "
                    "the missing rows to the node table, or pass --add-missing-nodes"
                    + self._same_numbers(value),
                    ("--add-missing-nodes",),
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

    def _same_numbers(self, unknown: str) -> str:
        """Returns a hint if the node table has the same number, written in another way."""
        written = self.duck.rows(
            "SELECT key::VARCHAR FROM nodes WHERE TRY_CAST(key::VARCHAR AS DOUBLE) = "
            f"TRY_CAST({literal(unknown)} AS DOUBLE) LIMIT 1"
        )
        if not written or self.nodes is None:
            return ""
        column = self.report.columns["id"]
        return (
            f"; its ids are written {written[0][0]!r} there and {unknown!r} here: with whole "
            f'numbers, read it as --nodes "SELECT * REPLACE (CAST(CAST({quoted(column)} AS DOUBLE) '
            f"AS BIGINT) AS {quoted(column)}) FROM '{self.nodes.name}'\""
        )
