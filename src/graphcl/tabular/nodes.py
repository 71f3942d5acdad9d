"""The nodes of one type: from a table, a matrix or edges, numbered from 0, with their features.

Nodes of a table keep its order. Nodes that only edges name come after them, sorted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, counted, demand, option, require
from graphcl.graphs.nodes import Nodes
from graphcl.store.columns import Names
from graphcl.store.header import MASKS
from graphcl.store.writer import ArrayWriter
from graphcl.tabular import columns as table_columns
from graphcl.tabular import labels as table_labels
from graphcl.tabular.beside import TagTable, VectorFeatures, load_ids, place_vectors
from graphcl.tabular.cells import with_mark
from graphcl.tabular.duck import Duck, is_query, quoted
from graphcl.tabular.features import (
    FeaturePart,
    InMemory,
    MatrixFeatures,
    entries_of,
    fill_sparse,
    kept,
    mostly_zeros,
)
from graphcl.tabular.fitting import ApplyColumns, FitColumns, kinds_given
from graphcl.tabular.graph_formats import read_features
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import Preparation
from graphcl.tabular.report import (
    ColumnOutcome,
    Problem,
    TableReport,
    Usual,
    collect,
    listed,
)
from graphcl.tabular.respelling import Table
from graphcl.tabular.sources import Source, open_source
from graphcl.tabular.times import LABELLED, TIME


class NoRowsError(GraphError):
    """A table without rows, where a graph needs some."""


class NodeSource:
    """A table of nodes that has been found but not read, or a matrix.

    Args:
        duck: a session of its own.
        given: the table or matrix; None takes the one of the file that has the edges, if any.
        options: of the whole graph.
        node_ids: the ids of the rows of a matrix.
        of_edges: the list of edges.

    Attributes:
        source: the table; of a matrix, that of its ids, ``node_rows``; None if there is none.
        matrix: the nodes of a matrix; None if it is a table.
        note: what is said of its file.
    """

    def __init__(
        self,
        duck: Duck,
        given: Any,
        options: TableOptions,
        node_ids: Any,
        of_edges: Source | None = None,
    ) -> None:
        self.duck, self.note = duck, ""
        self.source: Source | None = None if of_edges is None else of_edges.nodes
        self.matrix: Nodes | None = None
        query = isinstance(given, str) and is_query(given)
        found = None if query or given is None else read_features(given, node_ids)
        if found is not None:
            self.matrix, self.note = found
            ids = self.matrix.ids
            ids = ids if ids.dtype.kind != "O" else np.array([str(one) for one in ids])
            duck.load("node_rows", {"id": ids.tolist()})
            name = given if isinstance(given, str) else "nodes"
            self.source = Source(name, "node_rows", duck.columns("node_rows"))
            return
        demand(node_ids is None, "node_ids: they are for a matrix; a table has a column of ids")
        if given is not None:
            source = open_source(duck, _with_ids(given), role="nodes", options=options)
            self.source = source.nodes or source  # a graph file has a node table of its own


def _with_ids(table: Any) -> Any:
    """Returns a table; of pandas, an index without a name is the column `id`, if that is plain.

    It holds texts, each once, and no column is named like one of ids.
    """
    index = getattr(table, "index", None)
    if getattr(index, "names", ()) != [None] or table.index.inferred_type != "string":
        return table
    named = any(table_columns.rank(str(one), "") != table_columns.OTHER for one in table.columns)
    return table if named or not table.index.is_unique else table.rename_axis("id")


class NumberedNodes:
    """The nodes of one type: the session's tables ``nodes`` (key, number) and ``node_rows``.

    Args:
        opened: the table or matrix.
        options: those of this type.
        identity: the column of ids, and how it was found.
        report: what is found is added to it.

    Attributes:
        duck: the session.
        source: the node table, or None.
        parts: the features, side by side: of columns or a matrix, of tags, and vectors.
        sparse: whether features are sparse: given so, or mostly zeros.
        problems: what is wrong with the tables, as far as it does not end the reading at once.
        id_kind: the DuckDB type of the ids in the resulting graph.
        key_kind: the type of ``nodes.key``.
        num_nodes: number of nodes.
        in_order: whether the ids are 0 … num_nodes − 1 in order.
    """

    def __init__(
        self,
        opened: NodeSource,
        options: TableOptions,
        identity: tuple[str, str],
        report: TableReport,
    ) -> None:
        self.duck, self.options, self.report = opened.duck, options, report
        self.identity = identity
        self.parts: list[FeaturePart] = []
        self.sparse = False
        self.problems: list[Problem] = []
        self.id_kind = self.key_kind = "BIGINT"
        self.num_nodes, self.in_order = 0, False
        self._labels, self._ignored = tuple[str, ...](), tuple[str, ...]()
        self._split = ""
        self._prepared: FitColumns | ApplyColumns | None = None
        self._y: npt.NDArray[np.int64] | None = None
        self._masks: dict[str, npt.NDArray[np.bool_]] = {}
        self.source, self.matrix, self._note = opened.source, opened.matrix, opened.note
        self._has_columns = self.source is not None and self.matrix is None
        if self.matrix is not None:
            self.identity = ("id", "given")
        elif self.source is not None:
            self.source = self._load_table(self.source)
        self._open_beside()

    @property
    def table(self) -> str:
        """The table of keys and numbers, as all branches of the session name it."""
        return f"{self.duck.schema}.nodes"

    @property
    def used_columns(self) -> tuple[str, ...]:
        """Columns of the node table that are ids, labels, split and times, not features."""
        return (self.identity[0], *self._labels, self._split, TIME, LABELLED)

    @property
    def later(self) -> str:
        """SQL for the ids of nodes that came later than the graph is of."""
        there = self.source is not None and self.source.later
        return f"(SELECT key FROM {self.duck.schema}.later)" if there else "('')"

    def _load_table(self, source: Source) -> Source:
        """Creates ``node_rows``: ids, labels and split; features, maybe thousands, come later."""
        options, source = self.options, kept(self.duck, self._once(source))
        self._labels = table_columns.find_all(source, options.label, "label")
        if options.split is not None:
            self._split = table_columns.find(source, options.split, "split")
        wanted = [name for name in dict.fromkeys(self.used_columns) if name in source.columns]
        self.duck.run(
            f"CREATE TABLE node_rows AS SELECT {', '.join(map(quoted, wanted))} "
            f"FROM {source.relation}",
            where=source.name,
        )
        return source

    def _once(self, source: Source) -> Source:
        """Returns the node table with one row for each id, if the caller says which to keep."""
        keep, column = self.options.duplicates, quoted(self.identity[0])
        if keep == "refuse":
            return source
        rows, ids = self.duck.row(
            f"SELECT count({column}), count(DISTINCT {column}) FROM {source.relation}",
            where=source.name,
        )
        if rows == ids:
            return source
        self.report.notes.append(
            f"nodes: {source.name}: {counted(rows - ids, 'row repeats an id', 'rows repeat an id')}"
            f": the {keep} of each is kept"
        )
        order = "DESC" if keep == "last" else "ASC"
        place, rank = '"graphcl row"', f"PARTITION BY {column} ORDER BY"
        relation = (
            f"(SELECT * EXCLUDE ({place}) FROM (SELECT *, row_number() OVER () AS {place} FROM "
            f"{source.relation}) QUALIFY {column} IS NULL OR row_number() OVER ({rank} {place} "
            f"{order}) = 1 ORDER BY {place})"
        )
        return replace(source, relation=relation, stable=False)  # so it is kept in the session

    def _open_beside(self) -> None:
        """Reads the ids of tags and vectors; their features are made once nodes are numbered."""
        options = self.options
        self.tags: TagTable | None = None
        self._vector_ids: table_columns.IdColumn | None = None
        for name in ("tags", "vectors"):
            self._check_beside(name)
        demand(
            options.tags is not None or options.preparation or not options.tag_columns,
            f"{option('tag_columns')}: there are no tags; pass {option('tags', 'FILE')}",
        )
        if options.tags is not None:
            source = open_source(self.duck, options.tags, role="tags", options=options)
            id_column = self.identity[0] if self._has_columns else None
            self.tags = TagTable(self.duck, source, options, id_column)
        if options.vector_ids is not None:
            demand(
                options.vectors is not None,
                f"{option('vector_ids')}: there are no vectors; pass "
                f"{option('vectors', 'FILE.npy')}",
            )
            self._vector_ids = load_ids(self.duck, options)

    def _check_beside(self, name: str) -> None:
        """Refuses what does not go together, and what a model was not trained with."""
        own, prepared = option(name), self.options.preparation
        given = getattr(self.options, name) is not None
        trained = prepared is not None and getattr(prepared, name) is not None
        if self.options.features == "structural":
            demand(
                not given,
                f"{own}: {option('features', 'structural')} leaves {name} out; pass "
                f"{option('features', 'both')}",
            )
            return
        known = prepared is None or given == trained
        advice = f"pass {option(name, 'FILE')}" if trained else f"leave {own} out"
        with_it = "with" if trained else "without"
        demand(known, f"{own}: the model was trained {with_it} {name}; {advice}")

    def number(self, ends: Sequence[tuple[table_columns.IdColumn, str, int]]) -> None:
        """Numbers the nodes.

        Args:
            ends: the columns of ends of the lists of edges, with their types and rows; without a
                node table they name the nodes.
        """
        tagged = None if self.tags is None else self.tags.ids
        beside = [one for one in (tagged, self._vector_ids) if one is not None]
        self.report.notes += [line for one in beside for line in one.padding(self.duck)]
        kinds = {one.kind(self.duck) for one in beside}
        if self.source is None:
            self._number_ends(ends, kinds)
        else:
            self._number_table(self.source, kinds)
        self._count()

    def _count(self) -> None:
        (self.num_nodes,) = self.duck.row("SELECT coalesce(max(number), -1) + 1 FROM nodes")
        same = "bool_and(key = number)" if self.key_kind != "VARCHAR" else "false"
        self.in_order = bool(self.duck.row(f"SELECT {same} FROM nodes")[0])

    def _number_ends(
        self, ends: Sequence[tuple[table_columns.IdColumn, str, int]], kinds: set[str]
    ) -> None:
        """Numbers the nodes that edges and tags name, without a node table."""
        for name in ("label", "split", "id_column", "one_hot", "ignore"):
            demand(
                not getattr(self.options, name),
                f"{option(name)}: there is no node table; pass {option('nodes')}",
            )
        demand(
            self.tags is not None or any(rows for _, _, rows in ends),
            f"{ends[0][0].source.name}: has no rows; a graph needs at least one node",
            NoRowsError,
        )
        kinds |= {kind for _, kind, rows in ends if rows}
        self.id_kind = self.key_kind = kind = table_columns.common_kind(kinds)
        named = [(column.column, column.table) for column, _, _ in ends]
        named += [("key", "tag_rows")] if self.tags is not None else []
        union = " UNION ".join(f"SELECT CAST({one} AS {kind}) AS key FROM {t}" for one, t in named)
        self.duck.run(
            "CREATE TABLE nodes AS SELECT key, row_number() OVER (ORDER BY key) - 1 AS number "
            f"FROM ({union})"
        )

    def _number_table(self, source: Source, kinds: set[str]) -> None:
        duck, (name, how) = self.duck, self.identity
        column = table_columns.IdColumn(source, name, "node_rows", name)
        demand(
            duck.count("node_rows"),
            f"{source.name}: has no rows; a graph needs at least one node",
            NoRowsError,
        )
        collect(self.problems, column.check_present, duck)
        self.report.notes += column.padding(duck)
        self.id_kind = column.kind(duck)
        self.key_kind = table_columns.common_kind(kinds | {self.id_kind})
        duck.run(
            f"CREATE TABLE nodes AS SELECT CAST({quoted(name)} AS {self.key_kind}) AS key, "
            "rowid AS number FROM node_rows"
        )
        twice = duck.rows(
            "SELECT key::VARCHAR, min(number) + 1, max(number) + 1, count(*) OVER () FROM nodes "
            "WHERE key IS NOT NULL GROUP BY key HAVING count(*) > 1 ORDER BY 2 LIMIT 1"
        )
        for value, first, last, ids in twice:
            more = f" ({counted(ids, 'id')} with several rows)" if ids > 1 else ""
            known = self._has_columns
            either = f"{option('duplicates', 'first')} or {option('duplicates', 'last')}"
            keep = f": keep one with {either}" if known else ""
            self.problems.append(
                Problem(
                    f"{source.name}: rows {first} and {last} have the same id {value!r} in column "
                    f"{name!r}{more}; each node has one row{keep}",
                    ("duplicates", "first") if known else (),
                )
            )
            # What else is wrong is looked for as if the first were kept.
            duck.run(
                "DELETE FROM nodes WHERE number NOT IN (SELECT min(number) FROM nodes GROUP BY key)"
            )
        if source.later:
            duck.run(
                f"CREATE TABLE later AS SELECT DISTINCT {quoted(name)}::VARCHAR AS key "
                f"FROM {source.later} WHERE key NOT IN (SELECT key::VARCHAR FROM nodes)"
            )
        self.report.columns["id"] = name
        self._choose_features(source, how)

    def add(self, ids: str) -> int:
        """Adds the nodes that a query names, after all others; returns how many.

        They have features of zero and no label. Ids stay integers if all of them are.
        """
        same = f"coalesce(TRY_CAST(id AS {self.id_kind})::VARCHAR = id, false)"
        (fits,) = self.duck.row(f"SELECT bool_and({same}) FROM ({ids})")
        if not fits:
            self.duck.run("ALTER TABLE nodes ALTER key TYPE VARCHAR")
            self.id_kind = self.key_kind = "VARCHAR"
        self.duck.run(
            f"INSERT INTO nodes SELECT key, {self.num_nodes} + row_number() OVER (ORDER BY key) "
            f"- 1 FROM (SELECT DISTINCT CAST(id AS {self.key_kind}) AS key FROM ({ids}))"
        )
        before = self.num_nodes
        self._count()
        self.report.added_nodes = self.num_nodes - before
        return self.report.added_nodes

    def guessed_ids(self) -> str:
        """Returns what to say of the column of ids if it was guessed."""
        name, how = self.identity
        if how in ("given", "") or self.source is None:
            return ""
        others = ", ".join(repr(one) for one in list(self.source.columns)[:8] if one != name)
        more = f"; another column is given by {option('id_column')}: {others}" if others else ""
        return f"; the ids are those in {name!r} ({how}){more}"

    def as_given(self, kind: str) -> Table:
        """Returns the table of these nodes, which are of the type `kind`, as the user gives it."""
        source = cast("Source", self.source)
        return Table(self.options.nodes, source, "nodes", kind, [self.identity[0]])

    # Features

    def _choose_features(self, source: Source, how: str) -> None:
        options, report = self.options, self.report
        structural = options.features == "structural"
        if self.matrix is not None:
            report.notes.append(Usual(f"nodes: {source.name}: {self.matrix.num_features} features"))
            report.notes += [self._note] if self._note else []
            if not structural:
                self.parts.append(MatrixFeatures(self.matrix.x))
                self.sparse = scipy.sparse.issparse(self.matrix.x)
            return
        report.notes.append(Usual(f"nodes: {source.name}: ids in {self.identity[0]!r} ({how})"))
        self._ignored = table_columns.find_all(source, options.ignore, "ignore")
        if structural:
            return
        found = self._fit(source)
        self.problems += found.problems
        if found.features is not None:
            self.parts.append(found.features)
            report.preparation, report.filled_values = found.features.preparation, found.filled
            self._prepared = found

    def _fit(self, source: Source) -> FitColumns | ApplyColumns:
        """Decides what the columns become that are not used for something else."""
        options, used = self.options, set(self.used_columns)
        if options.preparation is not None:
            return ApplyColumns(self.duck, source, options.preparation)

        def named(keyword: str) -> tuple[str, ...]:
            return table_columns.find_all(source, getattr(options, keyword), keyword)

        given, training = kinds_given(source.name, named, used), self._training_rows()
        used |= set(self._ignored)
        return FitColumns(self.duck, source, options, used=used, given=given, training=training)

    def _training_rows(self) -> npt.NDArray[np.bool_] | None:
        """Returns the rows that statistics are taken from; None means all."""
        if not self.options.inductive or not self._split or self.source is None:
            return None
        return table_labels.read_split(self.duck, self.source, self._split)["train_mask"]

    def complete(self) -> None:
        """Adds the features of tags and vectors, labels and split, and reports all of it."""
        report, options = self.report, self.options
        training = self._training_rows()
        if training is not None:  # nodes that only edges name are not in training
            training = np.pad(training, (0, self.num_nodes - len(training)))
        prepared, known = report.preparation, options.preparation or Preparation(())
        beside: list[TagTable | VectorFeatures] = []
        if self.tags is not None:
            self.tags.join(self.key_kind, known.tags, training)
            beside.append(self.tags)
        if options.vectors is not None:
            ids, kind = self._vector_ids, self.key_kind
            vectors = place_vectors(self.duck, options, ids=ids, kind=kind, order=self.source)
            if not vectors.problems:
                vectors.look(known.vectors, training)
            beside.append(vectors)
        for part in beside:
            own: dict[str, Any] = {part.column.kind: part.column}
            prepared = replace(prepared or Preparation(()), **own)
            self.parts.append(part)
            self.problems += part.problems
            report.notes += part.notes
        if prepared is not None and not self.problems:
            fitted = self.sparse or mostly_zeros(self.parts, self.num_nodes)
            self.sparse = fitted if options.preparation is None else known.sparse
            report.preparation = replace(prepared, sparse=self.sparse)
            self._say_features(report.preparation)
        # Read now, so that all that is wrong is found before anything is refused.
        self._y = collect(self.problems, self._read_labels)
        self._masks = collect(self.problems, self._read_masks) or {}

    def _say_features(self, prepared: Preparation) -> None:
        """Reports the features, and what became of each column."""
        report, found = self.report, self._prepared
        report.column_features = names = prepared.features
        if names:
            kind = "sparse feature" if prepared.sparse else "feature"
            report.notes.append(Usual(f"nodes: {counted(len(names), kind)}: {listed(names)}"))
        if found is not None and self.source is not None:
            report.notes += found.notes
            roles = dict.fromkeys(self._ignored, "left out, as you asked")
            roles |= {self.identity[0]: "the ids"} | dict.fromkeys(self._labels, "a label")
            roles |= {self._split: "the split"}
            names = [name for name in self.source.columns if name not in (TIME, LABELLED)]
            report.fates += found.outcomes(names, roles)
        for one in prepared.beside:
            report.fates.append(ColumnOutcome(option(one.kind), one.describe(), len(one.features)))

    @property
    def num_features(self) -> int:
        """Number of features from the tables; structural features are not counted."""
        return sum(part.width for part in self.parts)

    def fill(
        self, into: InMemory | ArrayWriter, further: int = 0
    ) -> npt.NDArray[np.float32] | None:
        """Fills the arrays of sparse features, or ``x``, which is returned.

        The last columns of ``x``, as many as `further`, stay zeros for others to fill.
        """
        width, start = self.num_features + further, 0
        if width and self.options.features == "columns" and self.sparse:
            into.num_features = width
            fill_sparse(into, lambda: entries_of(self.parts), self.num_nodes)
            return None
        if not width:
            return None
        x = into.array("x", (self.num_nodes, width), np.float32)
        for part in self.parts:
            part.fill(x[:, start : start + part.width])
            start += part.width
        return x

    # Labels, split and ids

    def fields(self) -> dict[str, Any]:
        """Returns what `Nodes` have beside features: labels, masks, ids and names."""
        fields: dict[str, Any] = {
            name: self._padded(one, False) for name, one in self._masks.items()
        }
        if self._y is not None:
            fields["y"] = self._padded(self._y, np.nan if self._y.dtype.kind == "f" else -1)
        ids, report = self.node_ids(), self.report
        fields |= {"class_names": report.class_names, "preparation": report.preparation}
        return fields | ({} if ids is None else {"node_ids": ids})

    @property
    def num_classes(self) -> int:
        """Number of classes, or of labels per node if there are several; 0 without labels."""
        return Nodes("", self.num_nodes, y=self._y).num_classes

    def _padded(self, values: npt.NDArray[Any], filling: Any) -> npt.NDArray[Any]:
        """Returns one value per node; nodes that only edges name get the value `filling`."""
        added = self.num_nodes - len(values)
        return np.concatenate([values, np.full((added, *values.shape[1:]), filling, values.dtype)])

    def _columns_for(self, keyword: str) -> Source:
        demand(
            self._has_columns,
            f"{option(keyword)}: there is no node table with columns; pass {option('nodes')}",
        )
        return cast("Source", self.source)

    def _read_labels(self) -> npt.NDArray[Any] | None:
        names, report, separator = self._labels, self.report, self.options.label_separator
        kind = self.options.label_kind
        if not self.options.label:
            demand(
                separator is None,
                f"{option('label_separator')}: there are no labels; pass {option('label')}",
            )
            report.class_names = () if self.matrix is None else self.matrix.class_names
            return None if self.matrix is None else self.matrix.y
        source = self._columns_for("label")
        report.columns["label"] = ", ".join(names)
        if len(names) > 1 or separator is not None or table_labels.is_list(source, names[0]):
            require(
                kind != "number",
                "tables",
                option("label_kind"),
                "classes, if a node may have several labels",
                kind,
            )
            y, report.class_names = table_labels.read_several_labels(
                self.duck, source, names, separator
            )
            report.notes.append(Usual(table_labels.describe(y, names, report.class_names)))
            return y
        source = with_mark(source, names[0], self.options.decimal)
        number = table_labels.read_number(self.duck, source, names[0], kind)
        if number is not None:
            report.notes.append(Usual(table_labels.describe_number(number, names[0], kind)))
            return number
        y, report.class_names = table_labels.read_labels(self.duck, source, names[0])
        report.notes.append(Usual(table_labels.describe(y, names, report.class_names)))
        report.notes += table_labels.odd_labels(self.duck, names[0], report.class_names, kind)
        return y

    def _read_masks(self) -> dict[str, npt.NDArray[np.bool_]]:
        if self.options.split is None:
            given = {name: getattr(self.matrix, name, None) for name in MASKS}
            return {name: mask for name, mask in given.items() if mask is not None}
        found = table_labels.read_split(self.duck, self._columns_for("split"), self._split)
        self.report.columns["split"] = self._split
        sizes = "/".join(f"{int(mask.sum()):,}" for mask in found.values())
        self.report.notes.append(
            Usual(f"nodes: split in {self._split!r}: {sizes} train/val/test nodes")
        )
        return found

    def node_ids(self) -> Any:
        """Returns the ids, integers or `Names`; None if they are 0 … num_nodes − 1 in order."""
        if self.in_order and self.id_kind != "VARCHAR":
            return None
        column = self.duck.table(f"SELECT key::{self.id_kind} FROM nodes ORDER BY number").column(0)
        if self.id_kind != "VARCHAR":
            return column.to_numpy()
        return Names.from_arrow(column)
