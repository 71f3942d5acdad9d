"""What comes after the training: tables that change a graph, and a few rows of a request.

Both are prepared as the tables of the training were: no mean, category or scale is fitted again.
Tables name nodes by their ids; `graphcl.updating.matching` finds them in the graph. Single rows
come as plain values, from JSON or Arrow: a number, a text, a truth value, a list of numbers, or
None where a value is missing. They take milliseconds; dates, times and durations are read by
DuckDB, as in tables.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, counted, suggestion
from graphcl.tabular import cells
from graphcl.tabular import columns as table_columns
from graphcl.tabular.build import fill_structure
from graphcl.tabular.columns import IdColumn
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.edges import find_ends
from graphcl.tabular.features import InMemory
from graphcl.tabular.kinds import encode
from graphcl.tabular.nodes import NodeSource, NoRowsError, NumberedNodes
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import (
    CATEGORY,
    DATE,
    DURATION,
    NUMBER,
    TEXT,
    TIME,
    VECTOR,
    Column,
    Preparation,
)
from graphcl.tabular.report import listed, short
from graphcl.tabular.sources import Source, open_source
from graphcl.tabular.tables import Tables, open_tables

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
_LARGEST = float(np.finfo(np.float32).max)
_MOMENTS = {
    DATE: (date, datetime, "2026-05-17"),
    DURATION: (timedelta, timedelta, "3 days"),
    TIME: (time, time, "09:30"),
}
_FAR = 1e38  # a column of unknown range


@dataclass(eq=False)
class NewTables:
    """What tables of nodes and edges say.

    Attributes:
        ids: of the rows of the node table, then of nodes that only edges name.
        rows: how many of them are rows of the node table.
        x: features of these rows, ``[rows, len(features)]``, dense or CSR; None without any.
        features: which features of the graph the columns of `x` are.
        absent: columns of the training that the node table does not have.
        table: the node table's name in messages.
        y: labels of the rows, or None.
        class_names: their names.
        masks: the split of the rows; empty without one.
        pairs: edges, as places in `ids`, ``[m, 2]``, each once.
        weight: of the edges, or None.
        notes: lines for the user.
    """

    ids: Array
    rows: int = 0
    x: Any = None
    features: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    absent: tuple[str, ...] = ()
    table: str = "nodes"
    y: Array | None = None
    class_names: tuple[str, ...] = ()
    masks: dict[str, Array] = field(default_factory=dict)
    pairs: Array = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    weight: Array | None = None
    notes: list[str] = field(default_factory=list)


def read_new(edges: Any, options: TableOptions, *, width: int) -> NewTables:
    """Reads tables of new and changed nodes, and of new edges.

    Args:
        edges: a list of edges; None if there are none.
        options: `nodes` and `preparation` among them. Labels and the split of the training are read
            if the table has their columns.
        width: features that come from columns: all but those that are computed from edges.

    Raises:
        GraphError: a table is wrong; the message says where.
    """
    if options.nodes is None:
        if options.tags is not None:
            raise GraphError("update: --tags needs --nodes, which names the nodes that change")
        if edges is None:
            return NewTables(np.zeros(0, np.int64))
        return _read_edges(edges, options, "edges", weight=options.weight)
    chosen = _Columns(options, width)
    # Nodes that only edges name are nodes of the graph; whether they are is not known here.
    read = replace(chosen.options, unknown_edges="add")
    without = edges is None
    if without:
        edges = {"source": np.array([], np.str_), "target": np.array([], np.str_)}
        read = replace(read, source_column="source", target_column="target", weight=None)
    with _opened(edges, read, chosen.table) as tables:
        nodes = tables.plain
        rows = nodes.num_nodes - tables.report.added_nodes
        y = nodes.labels()
        found = NewTables(
            _ids(nodes),
            rows,
            nodes.features()[:rows] if nodes.num_features else None,
            chosen.features,
            chosen.absent,
            chosen.table,
            None if y is None else y[:rows],
            tables.report.class_names,
            {name: mask[:rows] for name, mask in nodes.masks().items()},
        )
        if found.x is not None and found.x.shape[1] != len(chosen.features):
            got = counted(found.x.shape[1], "feature")
            raise GraphError(f"{chosen.table}: has {got}; the graph has {width}")
        if chosen.exact and tables.report.filled_values:
            missing = counted(tables.report.filled_values, "value is", "values are")
            raise GraphError(f"{chosen.table}: {missing} missing; every feature needs one")
        _add_edges(found, tables)
        if without:  # the list of edges is ours
            found.notes = [line for line in found.notes if not line.startswith("edges:")]
        found.notes += chosen.notes
        return found


@contextmanager
def _opened(edges: Any, options: TableOptions, name: str) -> Iterator[Tables]:
    """Opens tables; one without rows is refused, because nothing would change."""
    try:
        with open_tables(edges, options) as tables:
            yield tables
    except NoRowsError:
        raise GraphError(f"{name}: has no rows, so nothing would change; leave it out") from None


class _Columns:
    """Which columns of a node table are read, and as what.

    Attributes:
        options: the options to read it with.
        features: the features that its columns become.
        absent: what the training had and the table has not.
        table: its name.
        notes: what to say of columns that are not read.
        exact: whether there is no preparation, so that nothing says what fills a hole.
    """

    def __init__(self, options: TableOptions, width: int) -> None:
        self.absent: tuple[str, ...] = ()
        self.features = np.arange(width)
        self.notes: list[str] = []
        given, prepared = options.nodes, options.preparation
        self.exact = False
        self.table = given if isinstance(given, str) else "nodes"
        with Duck() as duck:  # to look at its columns; it is read later
            opened = NodeSource(duck, given, options)
        source = opened.source
        if opened.matrix is not None or source is None:
            self.options = replace(options, label=(), split=None, preparation=None)
            return
        identity = table_columns.identity(source, options.id_column)[0]
        labels = _found(source, options.label)
        split = _found(source, () if options.split is None else (options.split,))
        ignored = table_columns.find_all(source, options.ignore, "--ignore")
        self.options = replace(options, label=labels, split=split[0] if split else None)
        used = {identity, *labels, *split, *ignored}
        names = [name for name in source.columns if name not in used]
        if width == 0:
            self.options = replace(self.options, features="structural", preparation=None)
        elif prepared is None:
            self.exact = True
            self.options = replace(self.options, preparation=_as_they_are(source, names, width))
        else:
            self._reduce(source, prepared, width)
            trained = {column.name for column in prepared.columns}
            extra = [repr(name) for name in names if name not in trained]
            if extra:
                columns = counted(len(extra), "column is", "columns are")
                why = "not used, because the model was not trained on them"
                self.notes.append(f"nodes: {columns} {why}: {listed(extra)}")

    def _reduce(self, source: Source, prepared: Preparation, width: int) -> None:
        """Leaves out what the table does not have."""
        if len(prepared.features) != width:
            wanted = f"{len(prepared.features)} features come from tables"
            raise GraphError(f"{source.name}: {wanted}, and the graph has {width}")
        parts = [(one.name, one.features, one.name in source.columns) for one in prepared.columns]
        beside: dict[str, Any] = {"tags": prepared.tags, "vectors": prepared.vectors}
        for option, one in prepared.beside:
            name = option.removeprefix("--")
            there = getattr(self.options, name) is not None
            beside[name] = one if there else None
            parts.append((option, tuple(one.features), there))
        self.absent = tuple(name for name, _, there in parts if not there)
        owned = np.repeat([there for _, _, there in parts], [len(own) for _, own, _ in parts])
        self.features = np.flatnonzero(owned)
        kept = tuple(one for one in prepared.columns if one.name in source.columns)
        reduced = replace(prepared, columns=kept, **beside)
        self.options = replace(self.options, preparation=reduced)
        if not reduced.features:
            self.options = replace(self.options, features="structural", preparation=None)


def present(given: Any, options: TableOptions, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns that a table of nodes has of some that the training had."""
    with Duck() as duck:
        return _found(
            open_source(duck, given, role="nodes", header=options.header, names=options.names),
            names,
        )


def as_they_are(
    given: Any, options: TableOptions, width: int, *, used: Sequence[str] = (), edges: bool = False
) -> Preparation:
    """Returns what takes the columns of a table as features, in order: those of no preparation.

    Args:
        given: a table of nodes, or a list of edges.
        options: how it is read.
        width: the features that the graph has.
        used: columns that are no features, where the table has them.
        edges: whether it is a list of edges.
    """
    role = "edges" if edges else "nodes"
    with Duck() as duck:
        source = open_source(duck, given, role=role, header=options.header, names=options.names)
    taken = {*_found(source, used)}
    if edges:
        taken |= {*find_ends(source, options, ())[1]}
    else:
        taken.add(table_columns.identity(source, options.id_column)[0])
    names = [name for name in source.columns if name not in taken]
    return _as_they_are(source, names, width)


def _as_they_are(source: Source, names: Sequence[str], width: int) -> Preparation:
    """Returns a preparation that takes columns as numbers, in order."""
    for name in names:
        if found := table_columns.refusal(source, name):  # as a feature it would leak
            raise GraphError(found[0])
    if len(names) != width:
        raise GraphError(
            f"{source.name}: has {counted(len(names), 'column')} of features; the graph "
            f"has {width}, and they are taken in order"
        )
    return Preparation(tuple(Column(one, NUMBER, (one,), low=-_FAR, high=_FAR) for one in names))


def _found(source: Source, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns that a table has of some that the training had."""
    known = {column.strip().lower() for column in source.columns}
    wanted = [name for name in names if name.strip().lower() in known]
    return table_columns.find_all(source, wanted, "--label")


def _ids(nodes: NumberedNodes) -> Array:
    ids = nodes.node_ids()
    found: Array = np.arange(nodes.num_nodes) if ids is None else ids[:]
    return found


def _add_edges(found: NewTables, tables: Tables) -> None:
    """Adds edges, each once, and what is said of the tables."""
    arrays = InMemory()
    fill_structure(tables, arrays)
    indptr, indices = arrays.arrays["indptr"], arrays.arrays["indices"]
    ends = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    once = ends < indices
    found.pairs = np.stack([ends[once], indices[once].astype(np.int64)], axis=1)
    if "edge_weight" in arrays.arrays:
        found.weight = arrays.arrays["edge_weight"][once]
    # That edges name nodes of the graph, or that a node has none here, is as it should be.
    usual = ("added, with features of zero", "no edge")
    said = [*tables.report.first, *tables.report.notes]
    found.notes = [line for line in said if not any(one in line for one in usual)]


def _read_edges(edges: Any, options: TableOptions, name: str, *, weight: Any) -> NewTables:
    """Reads a list of edges without a table of nodes."""
    columns = {one: getattr(options, one) for one in ("header", "source_column", "target_column")}
    plain = TableOptions(weight=weight, **columns)
    with _opened(edges, plain, edges if isinstance(edges, str) else name) as tables:
        found = NewTables(_ids(tables.plain))
        _add_edges(found, tables)
        return found


def read_pairs(edges: Any, options: TableOptions) -> NewTables:
    """Reads a list of edges to remove."""
    return _read_edges(edges, options, "remove_edges", weight=None)


def read_ids(given: Any, options: TableOptions) -> tuple[Array, list[str]]:
    """Reads a list of nodes to remove: a table with a column of ids; in Python also a list.

    Returns:
        The ids, and lines for the user.
    """
    if isinstance(given, list | tuple | np.ndarray):
        ids = np.asarray(given)
        if ids.dtype.kind not in "iu":
            ids = np.array(list(map(str, ids.tolist())))
        return ids, []
    with Duck() as duck:
        source = open_source(
            duck, given, role="remove-nodes", header=options.header, names=options.names
        )
        wanted = _found(source, () if options.id_column is None else (options.id_column,))
        name, how = table_columns.identity(source, wanted[0] if wanted else None)
        duck.run(f"CREATE TABLE gone AS SELECT {quoted(name)} AS key FROM {source.relation}")
        column = IdColumn(source, name, "gone", "key")
        column.check_present(duck)
        kind = column.kind(duck)
        rows = duck.rows(f"SELECT DISTINCT CAST(key AS {kind}) AS key FROM gone ORDER BY key")
        if not rows:
            raise GraphError(f"{source.name}: has no rows, so nothing would change; leave it out")
        types: dict[str, Any] = {"BIGINT": np.int64, "UBIGINT": np.uint64}
        notes = [f"nodes to remove: {source.name}: ids in {name!r} ({how})"]
        return np.array([one for (one,) in rows], types.get(kind, np.str_)), notes


def prepare_rows(rows: Sequence[Mapping[str, Any]], preparation: Preparation, width: int) -> Floats:
    """Returns the features of rows, ``[rows, width]``.

    Args:
        rows: a value for each column that the model was trained on; None is a missing value.
        preparation: what turns columns into features.
        width: features of the graph.

    Raises:
        GraphError: a column is missing or unknown, or a value is not what the training had.
    """
    if preparation.beside:
        option = preparation.beside[0][0]
        raise GraphError(
            f"the model was trained with {option}, which columns do not have; give features"
        )
    if len(preparation.features) != width:
        raise GraphError(
            f"{width - len(preparation.features)} of the model's features are computed from edges; "
            "give features"
        )
    names = [column.name for column in preparation.columns]
    for place, row in enumerate(rows):
        for name in row:
            if name not in names:
                listed = ", ".join(map(repr, names[:8])) + (", …" if len(names) > 8 else "")
                near = suggestion(name, names) or f"; the model was trained on {listed}"
                raise GraphError(f"node {place}: unknown column {short(name)}{near}")
        for name in names:
            if name not in row:
                raise GraphError(
                    f"node {place}: has no column {name!r}, which the model was trained on; null "
                    "is a missing value"
                )
    parts = [
        _features(column, [row[column.name] for row in rows], preparation)
        for column in preparation.columns
    ]
    x = np.concatenate(parts, axis=1).astype(np.float32, copy=False)
    if not np.isfinite(x).all():
        place, feature = np.argwhere(~np.isfinite(x))[0]
        raise GraphError(f"node {place}: {preparation.features[feature]!r} does not fit in float32")
    return x


def _features(column: Column, values: list[Any], preparation: Preparation) -> Floats:
    """Returns what a column becomes, ``[rows, features]``."""
    if column.kind == NUMBER:
        numbers = [_number(column, place, value) for place, value in enumerate(values)]
        return np.array(numbers, np.float64).astype(np.float32)[:, None]
    import pyarrow

    if column.kind in (CATEGORY, TEXT):
        texts = [_text(column, place, value) for place, value in enumerate(values)]
        return encode(column, pyarrow.array(texts, pyarrow.string()), preparation.arrays)
    if column.kind == VECTOR:
        lists = [_vector(column, place, value) for place, value in enumerate(values)]
        return encode(column, pyarrow.array(lists, pyarrow.list_(pyarrow.float32())), {})
    return encode(column, _seconds(column, values), {})


def _wrong(column: Column, place: int, value: Any, what: str) -> GraphError:
    return GraphError(f"node {place}, column {column.name!r}: {short(str(value))} is {what}")


def _number(column: Column, place: int, value: Any) -> float:
    """Returns a number; a text may hold one, as in a file without types."""
    if isinstance(value, str):
        cell = value.strip().lower()
        if cell in cells.NO_VALUE:
            value = None
        elif cell in ("true", "false"):
            value = cell == "true"
        else:
            if column.decimal:
                other = {",": ".", ".": ","}[column.decimal]
                cell = cell.replace(other, "").replace(column.decimal, ".")
            with suppress(ValueError):
                value = float(cell) if "_" not in cell else cell
    if value is None:
        return column.fill
    try:
        number = float(value) if isinstance(value, int | float) else None
    except OverflowError:
        number = math.inf
    if number is None:
        raise _wrong(column, place, value, "not a number")
    if math.isnan(number):
        return column.fill
    if abs(number) > _LARGEST:
        raise _wrong(column, place, value, "outside the range of float32")
    return number


def _text(column: Column, place: int, value: Any) -> str | None:
    """Returns a text as DuckDB would write the value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float | date | time | timedelta):
        raise _wrong(column, place, value, f"not a {column.kind}")
    return str(value)


def _vector(column: Column, place: int, value: Any) -> list[float] | None:
    width = len(column.features)
    if value is None:
        return None
    numbers = isinstance(value, list) and all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in value
    )
    if not numbers or len(value) != width or not all(abs(one) <= _LARGEST for one in value):
        raise _wrong(column, place, value, f"not a list of {width} numbers")
    return [float(one) for one in value]


def _seconds(column: Column, values: list[Any]) -> Any:
    """Returns seconds of dates, durations or times of day, which DuckDB reads from texts."""
    import pyarrow

    *kinds, example = _MOMENTS[column.kind]
    texts: list[str | None] = []
    for place, value in enumerate(values):
        if value is not None and not isinstance(value, (str, *kinds)):
            raise _wrong(column, place, value, f"not a {column.kind}, such as {example!r}")
        text = _interval(value) if isinstance(value, timedelta) else str(value)
        texts.append(None if value is None else text)
    table = pyarrow.table({"cell": pyarrow.array(texts, pyarrow.string())})
    with Duck() as duck:
        relation = duck.register("cells", table)
        dates = {"cell": column.date_format} if column.date_format else {}
        source = Source("columns", relation, {"cell": "VARCHAR"}, untyped=True, dates=dates)
        if column.kind == TIME:
            sql = 'epoch(TRY_CAST(trim("cell") AS TIME))'
        else:
            sql = (cells.date if column.kind == DATE else cells.duration)(source, "cell")
        absent = cells.absent(source, "cell")
        found = duck.rows(f"SELECT {sql}, {absent} FROM {relation}", where="columns")
    for place, (second, missing) in enumerate(found):
        if second is None and not missing:
            what = f"not a {column.kind}, such as {example!r}"
            raise _wrong(column, place, values[place], what)
    return pyarrow.array([one for one, _ in found], pyarrow.float64())


def _interval(value: timedelta) -> str:
    return f"{value.total_seconds():.6f} seconds"
