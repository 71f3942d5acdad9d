"""Tags: a long table, each row of which gives a node one feature by its name.

The rows are a node's id, a name and perhaps a value, as tables of keywords, purchases or visits
are. Each name becomes a feature; a node's value is the sum of its rows, or their number if there is
no column of values. DuckDB joins and sorts in bounded memory, and only the names, which are the
vocabulary of a run, are held in Python.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError
from graphcl.tabular import cells, columns
from graphcl.tabular.columns import IdColumn
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.numbers import Places
from graphcl.tabular.options import TableOptions, counted
from graphcl.tabular.preparation import Tags
from graphcl.tabular.prepared import is_far
from graphcl.tabular.problems import Problem, short
from graphcl.tabular.sources import Source

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
        found = columns.find_all(source, given, "--tag-columns")
        if len(set(found)) < len(found):
            raise GraphError(f"{source.name}: --tag-columns: {found[0]!r} cannot be two columns")
        value = found[2] if len(found) > 2 else None
        return TagColumns(found[0], found[1], value, "given")
    if len(source.columns) < 2:
        raise GraphError(
            f"{source.name}: --tags: has one column; a tag needs an id and a name; check that the "
            "delimiter is a comma, tab, semicolon or bar"
        )
    # The node table's own word for ids comes first; `name` is a name here rather than an id.
    identity = columns.named(source, [id_column.strip().lower()]) if id_column else None
    name = columns.named(source, NAMES, excluding=identity)
    ids = [one for one in columns.IDS if one not in NAMES]
    identity = identity or columns.named(source, ids, excluding=name)
    how = "guessed by name" if name and identity else "guessed: the first columns"
    rest = list(source.columns)
    identity = identity or next(one for one in rest if one != name)
    name = name or next(one for one in rest if one != identity)
    rest = [one for one in rest if one not in (identity, name)]
    value = next((one for one in rest if one.strip().lower() in VALUES), None)
    if value is None and len(rest) == 1 and _may_be_number(source, rest[0]):
        value = rest[0]
    return TagColumns(identity, name, value, how)


def _may_be_number(source: Source, name: str) -> bool:
    return source.untyped or cells.kind_of_type(source.columns[name]) == "number"


class TagTable:
    """A long table in the session: ``tag_rows`` (key, name, w), whose ``rowid`` is the row.

    Args:
        duck: the session.
        source: the table.
        options: says which columns it has.
        id_column: the node table's column of ids, if there is one.

    Attributes:
        ids: the column of ids.
        notes: what was found.
    """

    def __init__(
        self, duck: Duck, source: Source, options: TableOptions, id_column: str | None
    ) -> None:
        self._duck, self.source, self._strict = duck, source, options.strict
        self._found = found = tag_columns(source, options.tag_columns, id_column)
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
            raise GraphError(f"{source.name}: --tags: has no rows")
        self.ids = IdColumn(source, found.id, "tag_rows", "key")
        self.ids.check_present(duck)
        values = "" if found.value is None else f", values in {found.value!r}"
        self.notes = [f"tags: {source.name}: {found.id!r} – {found.name!r} ({found.how}){values}"]
        rest = [name for name in source.columns if name not in found[:3]]
        if rest:
            self.notes.append(f"tags: not used: {', '.join(map(repr, rest[:8]))}")

    def join(
        self, kind: str, known: Tags | None, training: npt.NDArray[np.bool_] | None
    ) -> "TagFeatures":
        """Joins the rows with the numbered nodes, and decides on the features.

        Args:
            kind: the type in which ids are compared.
            known: the names of a training; None decides.
            training: whether each node is one that names are taken from; None means all are.
        """
        problems = self._problems(known)
        if problems:
            return TagFeatures(self._duck, known or Tags(self._found.name, ()), problems=problems)
        notes = [*self.notes, *self._left_out()]
        # Rows add up in their order: in another, a sum may have other bits.
        added = "sum(w)" if self._found.value is None else "sum(w ORDER BY tag_rows.rowid)"
        self._duck.run(
            f"CREATE TABLE tag_cells AS SELECT number, name, {added} AS w, count(*) AS n "
            f"FROM tag_rows JOIN nodes ON CAST(tag_rows.key AS {kind}) = nodes.key "
            "WHERE name <> '' AND NOT isnan(w) GROUP BY number, name"
        )
        notes += self._unknown_nodes(kind, problems)
        if not problems:
            fitted = self._fit(training) if known is None else self._apply(known, notes)
            if isinstance(fitted, Tags):
                return self._features(fitted, notes)
            problems.append(fitted)
        return TagFeatures(self._duck, known or Tags(self._found.name, ()), problems=problems)

    # What is wrong

    def _problems(self, known: Tags | None) -> list[Problem]:
        """Returns what is wrong with the values, and with missing names if that is refused."""
        found: list[Problem] = []
        largest = float(np.finfo(np.float32).max)
        for condition, what in (
            ("w IS NULL", "is not a number"),
            (f"NOT isnan(w) AND abs(w) > {largest}::DOUBLE", "does not fit in a float32 feature"),
        ):
            row = self._first(condition)
            if row is not None:
                found.append(
                    Problem(
                        f"{self.source.name}: row {row[0]}, column {self._found.value!r}: "
                        f"{short(str(row[1]))} {what}; correct it"
                    )
                )
        if self._strict and known is None:
            for condition, column in (
                ("name IS NULL OR name = ''", self._found.name),
                ("isnan(w)", self._found.value),
            ):
                row = self._first(condition)
                if row is not None:
                    message = f"row {row[0]}, column {column!r} is missing; leave such rows out"
                    found.append(Problem(f"{self.source.name}: {message} with a query"))
        return found

    def _first(self, condition: str) -> tuple[int, Any] | None:
        found = self._duck.rows(
            f"SELECT rowid + 1, given FROM tag_rows WHERE {condition} ORDER BY rowid LIMIT 1"
        )
        return (int(found[0][0]), found[0][1]) if found else None

    def _left_out(self) -> list[str]:
        nameless, empty = self._duck.row(
            "SELECT count(*) FILTER (coalesce(name, '') = ''), "
            "count(*) FILTER (coalesce(name, '') <> '' AND isnan(w)) FROM tag_rows"
        )
        counts = ((nameless, "name"), (empty, "value"))
        return [
            f"tags: {counted(count, 'row has', 'rows have')} no {what}: left out"
            for count, what in counts
            if count
        ]

    def _unknown_nodes(self, kind: str, problems: list[Problem]) -> list[str]:
        """Says how many rows name a node that is not there; refuses them all or if asked to."""
        rows, nodes, first, value = self._duck.row(
            "SELECT count(*), count(DISTINCT key), min(place) + 1, min_by(key, place) FROM "
            f"(SELECT CAST(key AS {kind}) AS key, rowid AS place FROM tag_rows) "
            "ANTI JOIN nodes USING (key)"
        )
        if not rows:
            return []
        name = counted(rows, "row names", "rows name")
        unknown = counted(nodes, "unknown node")
        if rows < self.rows and not self._strict:
            return [f"tags: {name} {unknown}, first {str(value)!r} in row {first}: left out"]
        (known,) = self._duck.row("SELECT min_by(key, number)::VARCHAR FROM nodes")
        problems.append(
            Problem(
                f"{self.source.name}: --tags: {name} {unknown}, first {str(value)!r} in row "
                f"{first}; column {self._found.id!r} must hold ids of nodes, such as {known!r}"
            )
        )
        return []

    # The names

    def _fit(self, training: npt.NDArray[np.bool_] | None) -> Tags | Problem:
        """Takes the names from the training rows."""
        rows = "tag_cells"
        if training is not None:
            import pyarrow

            listed = pyarrow.table({"number": np.flatnonzero(training)})
            self._duck.load("tag_training", listed)
            rows = "tag_cells SEMI JOIN tag_training USING (number)"
        count, low, high = self._duck.row(
            f"SELECT count(DISTINCT name), min(w), max(w) FROM {rows}"
        )
        start = f"{self.source.name}: --tags: column {self._found.name!r} has"
        if not count:
            return Problem(f"{start} no names of nodes in training")
        if count > MOST_NAMES:
            return Problem(
                f"{start} {count:,} different names; at most {MOST_NAMES:,} become features: keep "
                "those of several nodes with a query"
            )
        self._duck.run(
            "CREATE TABLE tag_names AS SELECT name, row_number() OVER (ORDER BY name) - 1 AS place "
            f"FROM (SELECT DISTINCT name FROM {rows})"
        )
        names = [one for (one,) in self._duck.rows("SELECT name FROM tag_names ORDER BY place")]
        return Tags(self._found.name, tuple(names), float(low), float(high))

    def _apply(self, known: Tags, notes: list[str]) -> Tags:
        """Loads the names of a training; says which names it has not seen."""
        import pyarrow

        places = np.arange(len(known.names))
        listed = pyarrow.table({"name": pyarrow.array(known.names, "string"), "place": places})
        self._duck.load("tag_names", listed)
        rows, names = self._duck.row(
            "SELECT coalesce(sum(n), 0)::BIGINT, count(DISTINCT name) FROM tag_cells "
            "ANTI JOIN tag_names USING (name)"
        )
        if names:
            first = self._duck.rows(
                "SELECT DISTINCT name FROM tag_cells ANTI JOIN tag_names USING (name) "
                f"ORDER BY name LIMIT {_SHOWN}"
            )
            shown = ", ".join(short(name) for (name,) in first) + (", …" if names > _SHOWN else "")
            are = counted(names, "name is", "names are")
            notes.append(
                f"tags: {are} new to the model, in {counted(rows, 'row')}: left out: {shown}"
            )
        low, high = self._duck.row(
            "SELECT min(w), max(w) FROM tag_cells SEMI JOIN tag_names USING (name)"
        )
        if low is None:
            notes.append("tags: no name is known to the model: zeros for every node")
        elif is_far(known, float(low), float(high)):
            notes.append(
                f"tags: values far outside the training's range: {low:g} to {high:g}; in training "
                f"{known.low:g} to {known.high:g}"
            )
        return known

    def _features(self, tags: Tags, notes: list[str]) -> "TagFeatures":
        self._duck.run(
            "CREATE TABLE tag_entries AS SELECT number, place, TRY_CAST(w AS FLOAT) AS w "
            "FROM tag_cells JOIN tag_names USING (name) WHERE w <> 0 ORDER BY number, place"
        )
        entries, fits = self._duck.row("SELECT count(*), bool_and(w IS NOT NULL) FROM tag_entries")
        if fits is False:
            message = "values of a node and a name add up to more than a float32 feature holds"
            return TagFeatures(
                self._duck, tags, problems=[Problem(f"{self.source.name}: --tags: {message}")]
            )
        repeated, without = self._duck.row(
            "SELECT (SELECT coalesce(sum(n - 1), 0)::BIGINT FROM tag_cells), (SELECT count(*) FROM "
            "nodes ANTI JOIN tag_entries USING (number))"
        )
        if repeated:
            how = "counted" if self._found.value is None else "values added"
            notes.append(f"tags: {counted(repeated, 'repeated row')}: {how}")
        if without:
            has = counted(without, "node has", "nodes have")
            notes.append(f"tags: {has} none: zeros")
        return TagFeatures(self._duck, tags, notes, [], int(entries))


@dataclass(frozen=True)
class TagFeatures:
    """The features that a long table becomes.

    Attributes:
        duck: the session, which has ``tag_entries`` (number, place, w), sorted by both.
        tags: the names.
        notes: what was found.
        problems: what is wrong; then there are no features.
        filled: number of values that are not zero.
    """

    duck: Duck
    tags: Tags
    notes: list[str] | tuple[str, ...] = ()
    problems: list[Problem] | tuple[Problem, ...] = ()
    filled: int = 0

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.tags.names)

    def fill(self, x: npt.NDArray[np.float32]) -> None:
        """Fills `x`, zeros ``[nodes, width]``."""
        for rows, places, values in self.entries():
            x[rows, places] = values

    def entries(self) -> Iterator[tuple[Places, Places, npt.NDArray[np.float32]]]:
        """Yields rows, columns and values that are not zero; rows ascend in each part."""
        for batch in self.duck.batches("SELECT number, place, w FROM tag_entries"):
            if batch.num_rows:
                rows, places, values = (one.to_numpy() for one in batch.columns)
                yield rows.astype(np.int64), places.astype(np.int64), values
