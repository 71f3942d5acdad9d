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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, counted, option
from graphcl.files.arrays import map_npy, read_npy
from graphcl.tabular import cells, columns
from graphcl.tabular.columns import IdColumn, identity
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.features import FeaturePart, MatrixFeatures, Places
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import TAGS, VECTORS, Column, is_far
from graphcl.tabular.report import Problem, Usual, short
from graphcl.tabular.sources import Source, open_source

MOST_NAMES = 1_000_000  # of a vocabulary; an encoder has a row of weights for each
NAMES = ("tag", "tags", "keyword", "word", "term", "token", "feature", "item", "category", "name")
VALUES = ("value", "count", "weight", "n", "w", "freq", "frequency", "tf", "score", "amount")
_SHOWN = 3


class TagColumns(NamedTuple):
    """The columns of a long table, and how they were found; `value` may be missing."""

    id: str
    name: str
    value: str | None
    how: str


def tag_columns(source: Source, given: tuple[str, ...], id_column: str | None) -> TagColumns:
    """Returns the columns of a long table.

    Args:
        source: the table.
        given: the columns of ids, of names and perhaps of values; empty if they are to be guessed.
        id_column: the node table's column of ids, which may have the same name here.
    """
    if given:
        found = columns.find_all(source, given, "tag_columns")
        if len(set(found)) < len(found):
            raise GraphError(
                f"{source.name}: {option('tag_columns')}: {found[0]!r} cannot be two columns"
            )
        value = found[2] if len(found) > 2 else None
        return TagColumns(found[0], found[1], value, "given")
    if len(source.columns) < 2:
        raise GraphError(
            f"{source.name}: {option('tags')}: has one column; a tag needs an id and a name; check "
            "that the delimiter is a comma, tab, semicolon or bar"
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
    value = next((one for one in rest if one.strip().lower() in VALUES), None)
    if value is None and len(rest) == 1 and cells.may_be_number(source, rest[0]):
        value = rest[0]
    return TagColumns(identity, name, value, how)


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
        tags: the names that are features.
        notes: what was found.
        problems: what is wrong; then there are no features.
    """

    def __init__(
        self, duck: Duck, source: Source, options: TableOptions, id_column: str | None
    ) -> None:
        self._duck, self.source, self._strict = duck, source, options.strict
        self._found = found = tag_columns(source, options.tag_columns, id_column)
        self.tags, self._filled = Column(found.name, TAGS), 0
        self.problems: list[Problem] = []
        if found.value and options.decimal and cells.is_written(source, found.value):
            source = replace(source, decimals={found.value: options.decimal})
        value = "1::DOUBLE" if found.value is None else cells.number(source, found.value)
        shown = "NULL" if found.value is None else f"{quoted(found.value)}::VARCHAR"
        duck.run(
            f"CREATE TABLE tag_rows AS SELECT {quoted(found.id)} AS key, "
            f"trim({cells.text(source, found.name)}) AS name, {value} AS w, {shown} AS given "
            f"FROM {source.relation}",
            where=source.name,
        )
        (self.rows,) = duck.row("SELECT count(*) FROM tag_rows")
        if not self.rows:
            raise GraphError(f"{source.name}: {option('tags')}: has no rows")
        self.ids = IdColumn(source, found.id, "tag_rows", "key")
        self.ids.check_present(duck)
        values = "" if found.value is None else f", values in {found.value!r}"
        how = f"tags: {source.name}: {found.id!r} – {found.name!r} ({found.how}){values}"
        self.notes = [Usual(how) if found.how == "given" else how]
        rest = [name for name in source.columns if name not in found[:3]]
        if rest:
            self.notes.append(f"tags: not used: {', '.join(map(repr, rest[:8]))}")

    def join(self, kind: str, known: Column | None, training: npt.NDArray[np.bool_] | None) -> None:
        """Joins the rows with the numbered nodes, and decides on the features.

        Args:
            kind: the type in which ids are compared.
            known: the names of a training; None decides.
            training: whether each node is one that names are taken from; None means all are.
        """
        self._check_values(fitting=known is None)
        # Rows add up in their order: in another, a sum may have other bits.
        added = "sum(w)" if self._found.value is None else "sum(w ORDER BY tag_rows.rowid)"
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
        name, value = self._found.name, self._found.value
        unfit = f"NOT isnan(w) AND abs(w) > {float(np.finfo(np.float32).max)}::DOUBLE"
        tests = [
            ("w IS NULL", value, ": {0} is not a number; correct it"),
            (unfit, value, ": {0} does not fit in a float32 feature; correct it"),
        ]
        if self._strict and fitting:
            missing = " is missing; leave such rows out with a query"
            tests += [("name IS NULL OR name = ''", name, missing), ("isnan(w)", value, missing)]
        for condition, column, what in tests:
            for row, cell in self._duck.rows(
                f"SELECT rowid + 1, given FROM tag_rows WHERE {condition} ORDER BY rowid LIMIT 1"
            ):
                self._wrong(f"row {row}, column {column!r}{what.format(short(str(cell)))}")
        nameless, empty = self._duck.row(
            "SELECT count(*) FILTER (coalesce(name, '') = ''), "
            "count(*) FILTER (coalesce(name, '') <> '' AND isnan(w)) FROM tag_rows"
        )
        for count, what in ((nameless, "name"), (empty, "value")):
            if count:
                has = counted(count, "row has", "rows have")
                self.notes.append(f"tags: {has} no {what}: left out")

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
        such = f"column {self._found.id!r} must hold ids of nodes, such as {known!r}"
        self._wrong(f"{option('tags')}: {said}; {such}")

    def _fit(self, training: npt.NDArray[np.bool_] | None) -> None:
        """Takes the names from the training rows."""
        import pyarrow

        rows = "tag_cells"
        if training is not None:
            self._duck.load("tag_training", pyarrow.table({"number": np.flatnonzero(training)}))
            rows = "tag_cells SEMI JOIN tag_training USING (number)"
        count, low, high = self._duck.row(
            f"SELECT count(DISTINCT name), min(w), max(w) FROM {rows}"
        )
        start = f"{option('tags')}: column {self._found.name!r} has"
        if not count:
            self._wrong(f"{start} no names of nodes in training")
            return
        if count > MOST_NAMES:
            self._wrong(
                f"{start} {count:,} different names; at most {MOST_NAMES:,} become features: keep "
                "those of several nodes with a query"
            )
            return
        self._duck.run(
            "CREATE TABLE tag_names AS SELECT name, row_number() OVER (ORDER BY name) - 1 AS place "
            f"FROM (SELECT DISTINCT name FROM {rows})"
        )
        names = [one for (one,) in self._duck.rows("SELECT name FROM tag_names ORDER BY place")]
        self.tags = Column(
            self._found.name,
            TAGS,
            tuple(f"{self._found.name}={name}" for name in names),
            categories=tuple(names),
            low=float(low),
            high=float(high),
        )

    def _apply(self, known: Column) -> None:
        """Loads the names of a training; says which names it has not seen."""
        import pyarrow

        self.tags, places = known, np.arange(len(known.categories))
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
        self._duck.run(
            "CREATE TABLE tag_entries AS SELECT number, place, TRY_CAST(w AS FLOAT) AS w "
            "FROM tag_cells JOIN tag_names USING (name) WHERE w <> 0 ORDER BY number, place"
        )
        self._filled, unfit, repeated, without = self._duck.row(
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
            how = "counted" if self._found.value is None else "values added"
            self.notes.append(f"tags: {counted(repeated, 'repeated row')}: {how}")
        if without:
            self.notes.append(f"tags: {counted(without, 'node has', 'nodes have')} none: zeros")

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.tags.features)

    @property
    def filled(self) -> int:
        """Number of values that are not zero."""
        return self._filled

    def fill(self, x: npt.NDArray[np.float32]) -> None:
        """Fills `x`, zeros ``[nodes, width]``."""
        for rows, places, values in self.entries():
            x[rows, places] = values

    def entries(self) -> Iterator[tuple[Places, Places, npt.NDArray[np.float32]]]:
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
    if isinstance(given, str | Path):
        path, name = Path(given), Path(given).stem
        if path.suffix.lower() != ".npy":
            raise GraphError(
                f"{path}: {option('vectors')} takes an .npy file: numpy.save('vectors.npy', x)"
            )
        try:
            table = map_npy(path, GraphError, fortran_too=True)
        except FileNotFoundError:
            raise GraphError(f"{path}: no such file") from None
    else:
        path, name, table = Path("vectors"), "vectors", np.asarray(given)
    if table.ndim != 2 or table.dtype.kind not in "biuf" or not table.size:
        raise GraphError(
            f"{path}: {option('vectors')}: expected numbers [nodes, width]; got {table.dtype} "
            f"{str(table.shape)[:60]}"
        )
    return name, table


def load_ids(duck: Duck, options: TableOptions) -> IdColumn:
    """Loads the ids of vectors into ``vector_rows``, whose ``rowid`` is the row.

    They are an `.npy` file, a list, or a table.
    """
    given, path = options.vector_ids, isinstance(options.vector_ids, str | Path)
    if isinstance(given, list | tuple | np.ndarray) or str(given).endswith(".npy"):
        import pyarrow

        ids = read_npy(Path(given), GraphError) if path else np.asarray(given)
        name = str(given) if path else "vector_ids"
        if ids.ndim != 1 or ids.dtype.kind not in "iuUO":
            raise GraphError(
                f"{name}: {option('vector_ids')}: expected integers or strings, one for each"
            )
        ids = ids if ids.dtype.kind in "iu" else np.array([str(one) for one in ids])
        duck.load("vector_rows", pyarrow.table({"id": pyarrow.array(ids.tolist())}))
        column = "id"
        source = Source(name, "vector_rows", duck.columns("vector_rows"))
    else:
        source = open_source(duck, given, role="vector_ids", options=options)
        column, _ = identity(source, None)
        duck.run(
            f"CREATE TABLE vector_rows AS SELECT {quoted(column)} AS id FROM {source.relation}",
            where=source.name,
        )
    rows = len(open_vectors(options.vectors)[1])
    (found,) = duck.row("SELECT count(*) FROM vector_rows")
    if found != rows:
        raise GraphError(
            f"{source.name}: {option('vector_ids')}: {counted(found, 'id')} for "
            f"{counted(rows, 'vector')}"
        )
    loaded = IdColumn(source, column, "vector_rows", "id")
    loaded.check_present(duck)
    return loaded


@dataclass
class VectorFeatures(MatrixFeatures):
    """The features that a file of vectors becomes.

    Attributes:
        path: the file's name in messages.
        vectors: what becomes of them; their range is known after `look`.
        notes: what was found.
        problems: what is wrong.
    """

    path: str = ""
    vectors: Column = field(default_factory=lambda: Column("", VECTORS))
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def look(self, known: Column | None, training: npt.NDArray[np.bool_] | None) -> None:
        """Finds the range of the values and what is wrong with them.

        Args:
            known: the vectors of a training; None keeps the range that is found.
            training: whether each node is one that the range is taken from; None means all are.
        """
        if known is not None and len(known.features) != self.width:
            self.problems.append(
                Problem(
                    f"{self.path}: {option('vectors')}: vectors of {self.width:,} numbers; in "
                    f"training they had {len(known.features):,}"
                )
            )
            return
        low, high = np.inf, -np.inf
        for rows, _, block in self.blocks():
            wrong = np.argwhere(~np.isfinite(block))
            if len(wrong):
                node, place = (int(one) for one in wrong[0])
                row = int(rows[node])
                if self.places is not None:
                    row = int(np.flatnonzero(self.places == row)[0])
                value = self.x[row, place]
                self.problems.append(
                    Problem(
                        f"{self.path}: {option('vectors')}: {value} in row {row}, number {place} "
                        "(from 0); a feature is a finite float32"
                    )
                )
                return
            seen = block if training is None else block[training[rows]]
            if seen.size:
                low, high = min(low, float(seen.min())), max(high, float(seen.max()))
        if low > high:
            low = high = 0.0
        if known is None:
            self.vectors = replace(self.vectors, low=low, high=high)
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
    path = str(options.vectors) if isinstance(options.vectors, str | Path) else name
    names = tuple(f"{name}[{place}]" for place in range(table.shape[1]))
    found = VectorFeatures(table, path=path, vectors=Column(name, VECTORS, names))
    found.notes.append(Usual(f"vectors: {path}: {found.width:,} numbers for each node"))
    if ids is None:
        rows = 0 if order is None else int(duck.row("SELECT count(*) FROM node_rows")[0])
        if order is None:
            found.problems.append(
                Problem(
                    f"{path}: {option('vectors')}: without a node table nobody knows whose rows "
                    f"these are; pass their ids with {option('vector_ids', 'FILE')}"
                )
            )
        elif rows != len(table):
            found.problems.append(
                Problem(
                    f"{path}: {option('vectors')}: {len(table):,} rows for {counted(rows, 'row')} "
                    f"of {order.name}; there must be one for each, in the same order, or ids of "
                    f"the rows with {option('vector_ids', 'FILE')}"
                )
            )
        return found
    twice = duck.rows(
        "SELECT id::VARCHAR, min(rowid) + 1, max(rowid) + 1 FROM vector_rows GROUP BY id "
        "HAVING count(*) > 1 ORDER BY 2 LIMIT 1"
    )
    if twice:
        value, first, last = twice[0]
        same = f"rows {first} and {last} have the same id {value!r}"
        found.problems.append(Problem(f"{ids.source.name}: {option('vector_ids')}: {same}"))
        return found
    query = (
        f"SELECT coalesce(number, -1) FROM (SELECT rowid AS place, CAST(id AS {kind}) AS key "
        "FROM vector_rows) LEFT JOIN nodes USING (key) ORDER BY place"
    )
    (places,) = duck.arrays(query, where=ids.source.name)
    found.places = places.astype(np.int64)
    (nodes,) = duck.row("SELECT count(*) FROM nodes")
    unknown = int((found.places < 0).sum())
    without = nodes - (len(found.places) - unknown)
    said = []
    if unknown:
        said.append(f"{counted(unknown, 'id is', 'ids are')} of no node: left out")
    if without:
        said.append(f"{counted(without, 'node has', 'nodes have')} none: zeros")
    if unknown == len(table) or (options.strict and said):
        reason = said[0].split(":")[0] if unknown < len(table) else "none of the ids is a node's"
        found.problems.append(Problem(f"{ids.source.name}: {option('vector_ids')}: {reason}"))
    found.notes += [f"vectors: {one}" for one in said]
    return found
