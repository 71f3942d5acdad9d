"""What stands beside a node table: tags, whose names are features, and files of vectors.

Tags are a long table, each row of which gives a node one feature by its name. The rows are a node's
id, a name and perhaps a value, as tables of keywords, purchases or visits are. Each name becomes a
feature; a node's value is the sum of its rows, or their number if there is no column of values.
DuckDB joins and sorts in bounded memory, and only the names, which are the vocabulary of a run, are
held in Python.

Vectors are an `.npy` file with a row for each node, as language models give them. It is mapped and
read in blocks of rows, so its size does not matter. Its rows are in the order of the node table, or
a second file has their ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, counted, demand, option
from graphcl.files.arrays import map_npy, read_npy
from graphcl.tabular import cells, columns
from graphcl.tabular.columns import IdColumn, identity
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.features import Entries, FeaturePart, MatrixFeatures
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import TAGS, VECTORS, Column, is_far
from graphcl.tabular.report import Problem, Usual, short
from graphcl.tabular.sources import Source, open_source

MOST_NAMES = 1_000_000  # of a vocabulary; an encoder has a row of weights for each
NAMES = ("tag", "tags", "keyword", "word", "term", "token", "feature", "item", "category", "name")
VALUES = ("value", "count", "weight", "n", "w", "freq", "frequency", "tf", "score", "amount")
_SHOWN = 3


TagColumns = tuple[str, str, str | None, str]  # of ids, names and values, and how they were found


def tag_columns(source: Source, given: tuple[str, ...], id_column: str | None) -> TagColumns:
    """Returns the columns of a long table.

    Args:
        source: the table.
        given: the columns of ids, of names and perhaps of values; empty if they are to be guessed.
        id_column: the node table's column of ids, which may have the same name here.
    """
    if given:
        found = columns.find_all(source, given, "tag_columns")
        demand(
            len(set(found)) == len(found),
            f"{source.name}: {option('tag_columns')}: {found[0]!r} cannot be two columns",
        )
        return found[0], found[1], found[2] if len(found) > 2 else None, "given"
    demand(
        len(source.columns) > 1,
        f"{source.name}: {option('tags')}: has one column; a tag needs an id and a name; check "
        "that the delimiter is a comma, tab, semicolon or bar",
    )
    # The node table's own word for ids comes first; `name` is a name here rather than an id.
    identity = columns.named(source, [id_column]) if id_column else None
    name = columns.named(source, NAMES, excluding=identity)
    ids = [one for one in columns.IDS if one not in NAMES]
    identity = identity or columns.named(source, ids, excluding=name)
    how = "guessed by name" if name and identity else "guessed: the first columns"
    rest = list(source.columns)
    identity = identity or next(one for one in rest if one != name)
    name = name or next(one for one in rest if one != identity)
    rest = [one for one in rest if one not in (identity, name)]
    only = [one for one in rest if len(rest) == 1 and cells.may_be_number(source, one)]
    values = [one for one in rest if one.strip().lower() in VALUES] or only
    return identity, name, next(iter(values), None), how


class TagTable(FeaturePart):
    """A long table in the session, ``tag_rows`` (key, name, w), and the features that it becomes.

    The features are known once the rows are joined with numbered nodes: ``tag_entries`` (number,
    place, w), sorted by both.

    Args:
        duck: the session.
        source: the table.
        options: says which columns it has.
        id_column: the node table's column of ids, if there is one.

    Attributes:
        ids: the column of ids.
        column: what becomes of the names.
        notes: what was found.
        problems: what is wrong; then there are no features.
    """

    def __init__(
        self, duck: Duck, source: Source, options: TableOptions, id_column: str | None
    ) -> None:
        self._duck, self.source, self._strict = duck, source, options.strict
        key, name, value, how = found = tag_columns(source, options.tag_columns, id_column)
        self._id, self._name, self._value = found[:3]
        self.column, self.width, self.filled = Column(name, TAGS), 0, 0
        self.problems: list[Problem] = []
        number, shown = "1::DOUBLE", "NULL"
        if value is not None:
            marked = cells.with_mark(source, value, options.decimal)
            number, shown = cells.number(marked, value), f"{quoted(value)}::VARCHAR"
        duck.run(
            f"CREATE TABLE tag_rows AS SELECT {quoted(key)} AS key, "
            f"trim({cells.text(source, name)}) AS name, {number} AS w, {shown} AS given "
            f"FROM {source.relation}",
            where=source.name,
        )
        self.rows = duck.count("tag_rows")
        demand(self.rows, f"{source.name}: {option('tags')}: has no rows")
        self.ids = IdColumn(source, key, "tag_rows", "key")
        self.ids.check_present(duck)
        values = "" if value is None else f", values in {value!r}"
        said = f"tags: {source.name}: {key!r} – {name!r} ({how}){values}"
        self.notes = [Usual(said) if how == "given" else said]
        rest = [repr(one) for one in source.columns if one not in found[:3]]
        self.notes += [f"tags: not used: {', '.join(rest[:8])}"] if rest else []

    def join(self, kind: str, known: Column | None, training: npt.NDArray[np.bool_] | None) -> None:
        """Joins the rows with the numbered nodes, and decides on the features.

        Args:
            kind: the type in which ids are compared.
            known: the names of a training; None decides.
            training: whether each node is one that names are taken from; None means all are.
        """
        self._check_values(fitting=known is None)
        # Rows add up in their order: in another, a sum may have other bits.
        added = "sum(w)" if self._value is None else "sum(w ORDER BY tag_rows.rowid)"
        self._duck.run(
            f"CREATE TABLE tag_cells AS SELECT number, name, {added} AS w, count(*) AS n "
            f"FROM tag_rows JOIN nodes ON CAST(tag_rows.key AS {kind}) = nodes.key "
            "WHERE name <> '' AND NOT isnan(w) GROUP BY number, name"
        )
        self._say_unknown(kind)
        if not self.problems and known is None:
            self._fit(training)
        elif not self.problems and known is not None:
            self._apply(known)
        if not self.problems:
            self._place()

    def _wrong(self, message: str) -> None:
        self.problems.append(Problem(f"{self.source.name}: {message}"))

    def _check_values(self, *, fitting: bool) -> None:
        """Refuses values that are no features, and missing ones if that is asked for."""
        unfit = f"NOT isnan(w) AND abs(w) > {float(np.finfo(np.float32).max)}::DOUBLE"
        tests = [
            ("w IS NULL", self._value, ": {0} is not a number; correct it"),
            (unfit, self._value, ": {0} does not fit in a float32 feature; correct it"),
        ]
        nameless, empty = "coalesce(name, '') = ''", "coalesce(name, '') <> '' AND isnan(w)"
        if self._strict and fitting:
            left = " is missing; leave such rows out with a query"
            tests += [(nameless, self._name, left), ("isnan(w)", self._value, left)]
        for condition, column, what in tests:
            for row, cell in self._duck.first("tag_rows", condition, "given"):
                self._wrong(f"row {row}, column {column!r}{what.format(short(str(cell)))}")
        for condition, what in ((nameless, "name"), (empty, "value")):
            if count := self._duck.count(f"tag_rows WHERE {condition}"):
                self.notes.append(
                    f"tags: {counted(count, 'row has', 'rows have')} no {what}: left out"
                )

    def _say_unknown(self, kind: str) -> None:
        """Says how many rows name a node that is not there; refuses them all or if asked to."""
        rows, nodes, first, value = self._duck.row(
            "SELECT count(*), count(DISTINCT key), min(place) + 1, min_by(key, place) FROM "
            f"(SELECT CAST(key AS {kind}) AS key, rowid AS place FROM tag_rows) "
            "ANTI JOIN nodes USING (key)"
        )
        if not rows:
            return
        said = f"{counted(rows, 'row names', 'rows name')} {counted(nodes, 'unknown node')}"
        said = f"{said}, first {str(value)!r} in row {first}"
        if rows < self.rows and not self._strict:
            self.notes.append(f"tags: {said}: left out")
            return
        (known,) = self._duck.row("SELECT min_by(key, number)::VARCHAR FROM nodes")
        self._wrong(
            f"{option('tags')}: {said}; column {self._id!r} must hold ids of nodes, such as "
            f"{known!r}"
        )

    def _fit(self, training: npt.NDArray[np.bool_] | None) -> None:
        """Takes the names from the training rows."""
        rows = "tag_cells"
        if training is not None:
            self._duck.load("tag_training", {"number": np.flatnonzero(training)})
            rows = "tag_cells SEMI JOIN tag_training USING (number)"
        count, low, high = self._duck.row(
            f"SELECT count(DISTINCT name), min(w), max(w) FROM {rows}"
        )
        start = f"{option('tags')}: column {self._name!r} has"
        if not 0 < count <= MOST_NAMES:
            most = f"{count:,} different names; at most {MOST_NAMES:,} become features: keep those"
            what = (
                f"{most} of several nodes with a query"
                if count
                else "no names of nodes in training"
            )
            self._wrong(f"{start} {what}")
            return
        self._duck.run(
            "CREATE TABLE tag_names AS SELECT name, row_number() OVER (ORDER BY name) - 1 AS place "
            f"FROM (SELECT DISTINCT name FROM {rows})"
        )
        names = [one for (one,) in self._duck.rows("SELECT name FROM tag_names ORDER BY place")]
        self.column = Column(
            self._name,
            TAGS,
            tuple(f"{self._name}={name}" for name in names),
            categories=tuple(names),
            low=float(low),
            high=float(high),
        )

    def _apply(self, known: Column) -> None:
        """Loads the names of a training; says which names it has not seen."""
        import pyarrow

        self.column, places = known, np.arange(len(known.categories))
        listed = pyarrow.table({"name": pyarrow.array(known.categories, "string"), "place": places})
        self._duck.load("tag_names", listed)
        rows, names, shown = self._duck.row(
            "SELECT coalesce(sum(n), 0)::BIGINT, count(DISTINCT name), "
            f"list(DISTINCT name ORDER BY name)[:{_SHOWN}] FROM tag_cells "
            "ANTI JOIN tag_names USING (name)"
        )
        if names:
            are, in_rows = counted(names, "name is", "names are"), counted(rows, "row")
            first = ", ".join(map(short, shown)) + (", …" if names > _SHOWN else "")
            self.notes.append(f"tags: {are} new to the model, in {in_rows}: left out: {first}")
        low, high = self._duck.row(
            "SELECT min(w), max(w) FROM tag_cells SEMI JOIN tag_names USING (name)"
        )
        if low is None:
            self.notes.append("tags: no name is known to the model: zeros for every node")
        elif is_far(known, float(low), float(high)):
            self.notes.append(
                f"tags: values far outside the training's range: {low:g} to {high:g}; in training "
                f"{known.low:g} to {known.high:g}"
            )

    def _place(self) -> None:
        """Creates the entries of the features, and says what was added up, and who has none."""
        self.width = len(self.column.features)
        self._duck.run(
            "CREATE TABLE tag_entries AS SELECT number, place, TRY_CAST(w AS FLOAT) AS w "
            "FROM tag_cells JOIN tag_names USING (name) WHERE w <> 0 ORDER BY number, place"
        )
        self.filled, unfit, repeated, without = self._duck.row(
            "SELECT count(*), count(*) FILTER (w IS NULL), "
            "(SELECT coalesce(sum(n - 1), 0)::BIGINT FROM tag_cells), "
            "(SELECT count(*) FROM nodes ANTI JOIN tag_entries USING (number)) FROM tag_entries"
        )
        if unfit:
            self._wrong(
                f"{option('tags')}: values of a node and a name add up to more than a float32 "
                "feature holds"
            )
        if repeated:
            how = "counted" if self._value is None else "values added"
            self.notes.append(f"tags: {counted(repeated, 'repeated row')}: {how}")
        if without:
            self.notes.append(f"tags: {counted(without, 'node has', 'nodes have')} none: zeros")

    def fill(self, x: npt.NDArray[np.float32]) -> None:
        """Fills `x`, zeros ``[nodes, width]``."""
        for rows, places, values in self.entries():
            x[rows, places] = values

    def entries(self) -> Iterator[Entries]:
        """Yields rows, columns and values that are not zero; rows ascend in each part."""
        for batch in self._duck.batches("SELECT number, place, w FROM tag_entries"):
            if batch.num_rows:
                rows, places, values = (one.to_numpy() for one in batch.columns)
                yield rows.astype(np.int64), places.astype(np.int64), values


def open_vectors(given: Any) -> tuple[str, npt.NDArray[Any]]:
    """Returns the name of vectors and a map of their file, or the array that is given.

    Raises:
        GraphError: it is no table of numbers ``[rows, width]``.
    """
    path, name = Path("vectors"), "vectors"
    if isinstance(given, str):
        path, name = Path(given), Path(given).stem
        demand(
            path.suffix.lower() == ".npy",
            f"{path}: {option('vectors')} takes an .npy file: numpy.save('vectors.npy', x)",
        )
        demand(path.exists(), f"{path}: no such file")
        given = map_npy(path, GraphError, fortran_too=True)
    table = np.asanyarray(given)
    demand(
        table.ndim == 2 and table.dtype.kind in "biuf" and table.size,
        f"{path}: {option('vectors')}: expected numbers [nodes, width]; got {table.dtype} "
        f"{str(table.shape)[:60]}",
    )
    return name, table


def load_ids(duck: Duck, options: TableOptions) -> IdColumn:
    """Loads the ids of vectors into ``vector_rows``, whose ``rowid`` is the row.

    They are an `.npy` file, a list, or a table.
    """
    given, column = options.vector_ids, "id"
    file = isinstance(given, str)
    if not file or given.endswith(".npy"):
        ids = read_npy(Path(given), GraphError) if file else np.asarray(given)
        name = given if file else "vector_ids"
        demand(
            ids.ndim == 1 and ids.dtype.kind in "iuUO",
            f"{name}: {option('vector_ids')}: expected integers or strings, one for each",
        )
        ids = ids if ids.dtype.kind in "iu" else ids.astype(str)
        duck.load("vector_rows", {"id": ids.tolist()})
        source = Source(name, "vector_rows", duck.columns("vector_rows"))
    else:
        source = open_source(duck, given, role="vector_ids", options=options)
        column, _ = identity(source, None)
        duck.run(
            f"CREATE TABLE vector_rows AS SELECT {quoted(column)} AS id FROM {source.relation}",
            where=source.name,
        )
    rows, found = len(open_vectors(options.vectors)[1]), duck.count("vector_rows")
    demand(
        found == rows,
        f"{source.name}: {option('vector_ids')}: {counted(found, 'id')} for "
        f"{counted(rows, 'vector')}",
    )
    loaded = IdColumn(source, column, "vector_rows", "id")
    loaded.check_present(duck)
    return loaded


@dataclass
class VectorFeatures(MatrixFeatures):
    """The features that a file of vectors becomes.

    Attributes:
        path: the file's name in messages.
        column: what becomes of them; their range is known after `look`.
        notes: what was found.
        problems: what is wrong.
    """

    path: str = ""
    column: Column = field(default_factory=lambda: Column("", VECTORS))
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def wrong(self, message: str, name: str = "") -> None:
        """Notes a problem with the vectors, or with their ids in a table of this name."""
        of = "vector_ids" if name else "vectors"
        self.problems.append(Problem(f"{name or self.path}: {option(of)}: {message}"))

    def look(self, known: Column | None, training: npt.NDArray[np.bool_] | None) -> None:
        """Finds the range of the values and what is wrong with them.

        Args:
            known: the vectors of a training; None keeps the range that is found.
            training: whether each node is one that the range is taken from; None means all are.
        """
        if known is not None and len(known.features) != self.width:
            self.wrong(
                f"vectors of {self.width:,} numbers; in training they had {len(known.features):,}"
            )
            return
        low, high = np.inf, -np.inf
        for rows, _, block in self.blocks():
            for node, place in np.argwhere(~np.isfinite(block))[:1]:
                row = int(rows[node])
                if self.places is not None:
                    row = int(np.flatnonzero(self.places == row)[0])
                self.wrong(
                    f"{self.x[row, place]} in row {row}, number {place} (from 0); a feature is a "
                    "finite float32"
                )
                return
            seen = block if training is None else block[training[rows]]
            low = min(low, float(seen.min(initial=np.inf)))
            high = max(high, float(seen.max(initial=-np.inf)))
        if low > high:
            low = high = 0.0
        if known is None:
            self.column = replace(self.column, low=low, high=high)
        elif is_far(known, low, high):
            self.notes.append(
                f"vectors: numbers far outside the training's range: {low:g} to {high:g}; in "
                f"training {known.low:g} to {known.high:g}"
            )


def place_vectors(
    duck: Duck, options: TableOptions, *, ids: IdColumn | None, kind: str, order: Source | None
) -> VectorFeatures:
    """Finds the node of each vector, once nodes are numbered.

    Args:
        duck: the session.
        options: name the file or array, and say whether to refuse nodes without a vector, and
            vectors without a node.
        ids: the vectors' ids; None means that they are in the order of the node table.
        kind: the type in which ids are compared.
        order: the node table, or None.
    """
    name, table = open_vectors(options.vectors)
    path = options.vectors if isinstance(options.vectors, str) else name
    names = tuple(f"{name}[{place}]" for place in range(table.shape[1]))
    found = VectorFeatures(table, path=path, column=Column(name, VECTORS, names))
    found.notes.append(Usual(f"vectors: {path}: {found.width:,} numbers for each node"))
    if ids is None:
        rows, pass_ids = (
            0 if order is None else duck.count("node_rows"),
            option("vector_ids", "FILE"),
        )
        if order is None:
            found.wrong(
                "without a node table nobody knows whose rows these are; pass their ids with "
                f"{pass_ids}"
            )
        elif rows != len(table):
            found.wrong(
                f"{len(table):,} rows for {counted(rows, 'row')} of {order.name}; there must be "
                f"one for each, in the same order, or ids of the rows with {pass_ids}"
            )
        return found
    twice = duck.rows(
        "SELECT id::VARCHAR, min(rowid) + 1, max(rowid) + 1 FROM vector_rows GROUP BY id "
        "HAVING count(*) > 1 ORDER BY 2 LIMIT 1"
    )
    for value, first, last in twice:
        found.wrong(f"rows {first} and {last} have the same id {value!r}", ids.source.name)
        return found
    query = (
        f"SELECT coalesce(number, -1) FROM (SELECT rowid AS place, CAST(id AS {kind}) AS key "
        "FROM vector_rows) LEFT JOIN nodes USING (key) ORDER BY place"
    )
    (places,) = duck.arrays(query, where=ids.source.name)
    found.places = places.astype(np.int64)
    unknown = int((found.places < 0).sum())
    without = duck.count("nodes") - (len(found.places) - unknown)
    said = []
    if unknown:
        said.append(f"{counted(unknown, 'id is', 'ids are')} of no node: left out")
    if without:
        said.append(f"{counted(without, 'node has', 'nodes have')} none: zeros")
    if unknown == len(table) or (options.strict and said):
        reason = said[0].split(":")[0] if unknown < len(table) else "none of the ids is a node's"
        found.wrong(reason, ids.source.name)
    found.notes += [f"vectors: {one}" for one in said]
    return found
