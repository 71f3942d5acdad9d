"""Tables that say what changes in a graph: new nodes and edges, and lists of what is removed.

They are read as the tables of the training were, by its preparation: no mean, category or scale is
fitted again. Nodes are named by their ids; `graphcl.updating.matching` finds them in the graph.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, counted
from graphcl.tabular import columns as table_columns
from graphcl.tabular import matrix as node_matrix
from graphcl.tabular.build import ids_of_column
from graphcl.tabular.columns import IdColumn
from graphcl.tabular.duck import Duck, is_query, quoted
from graphcl.tabular.numbering import NoRowsError
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import NUMBER, Column, Preparation
from graphcl.tabular.sources import Source, open_source
from graphcl.tabular.tables import InMemory, Tables, open_tables

Array = npt.NDArray[Any]
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
    # Nodes that only edges name are nodes of the graph; whether they are is not known here.
    options = replace(options, unknown_edges="add")
    if options.nodes is None and options.tags is None:
        if edges is None:
            return NewTables(np.zeros(0, np.int64))
        plain = TableOptions(unknown_edges="add", header=options.header, weight=options.weight)
        plain = replace(
            plain, source_column=options.source_column, target_column=options.target_column
        )
        with _opened(edges, plain, _named(edges, "edges")) as tables:
            return _with_edges(NewTables(_ids(tables)), tables)
    if options.nodes is None:
        raise GraphError("update: --tags needs --nodes, which names the nodes that change")
    chosen = _Columns(options, width)
    without = edges is None
    if without:
        import pyarrow

        nothing = pyarrow.array([], pyarrow.string())
        edges = pyarrow.table({"source": nothing, "target": nothing})
        chosen.options = replace(
            chosen.options, source_column="source", target_column="target", weight=None
        )
    with _opened(edges, chosen.options, chosen.table) as tables:
        ids = _ids(tables)
        rows = tables.num_nodes - tables.report.added_nodes
        y = tables.labels()
        found = NewTables(
            ids,
            rows,
            _features(tables, rows),
            chosen.features,
            chosen.absent,
            chosen.table,
            None if y is None else y[:rows],
            tables.report.class_names,
            {name: mask[:rows] for name, mask in tables.masks().items()},
        )
        if found.x is not None and found.x.shape[1] != len(chosen.features):
            got = counted(found.x.shape[1], "feature")
            raise GraphError(f"{chosen.table}: has {got}; the graph has {width}")
        if chosen.exact and tables.report.filled_values:
            missing = counted(tables.report.filled_values, "value is", "values are")
            raise GraphError(f"{chosen.table}: {missing} missing; every feature needs one")
        found = _with_edges(found, tables)
        if without:  # the list of edges is ours
            found.notes = [line for line in found.notes if not line.startswith("edges:")]
        found.notes += chosen.notes
        return found


def _named(given: Any, name: str) -> str:
    return given if isinstance(given, str) else name


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
        self.exact = False
        self.notes: list[str] = []
        self.options = options
        given, prepared = options.nodes, options.preparation
        self.table = given if isinstance(given, str) else "nodes"
        matrix = None
        if not (isinstance(given, str) and is_query(given)):
            matrix = node_matrix.read(given, options.node_ids)
        if matrix is not None:
            self.options = replace(options, label=(), split=None, preparation=None)
            return
        source = _columns_of(given, options)
        identity = table_columns.identity(source, options.id_column)[0]
        labels, split = _found(source, options.label), _found(source, _single(options.split))
        ignored = table_columns.find_all(source, options.ignore, "--ignore")
        self.options = replace(options, label=labels, split=split[0] if split else None)
        if width == 0:
            self.options = replace(self.options, features="structural", preparation=None)
        elif prepared is None:
            used = {identity, *labels, *split, *ignored}
            names = [name for name in source.columns if name not in used]
            _refuse_labels(source, names)
            if len(names) != width:
                raise GraphError(
                    f"{source.name}: has {counted(len(names), 'column')} of features; the graph "
                    f"has {width}, and they are taken in order"
                )
            plain = [Column(name, NUMBER, (name,), low=-_FAR, high=_FAR) for name in names]
            self.exact = True
            self.options = replace(self.options, preparation=Preparation(tuple(plain)))
        else:
            self._reduce(source, prepared, width)
            known = {identity, *labels, *split, *ignored}
            self._say_extra(source, prepared, known)

    def _say_extra(self, source: Source, prepared: Preparation, known: set[str]) -> None:
        """Says which columns the model was not trained on: they are left out."""
        read = known | {column.name for column in prepared.columns}
        extra = [name for name in source.columns if name not in read]
        if extra:
            listed = ", ".join(map(repr, extra[:8])) + (", …" if len(extra) > 8 else "")
            columns = counted(len(extra), "column is", "columns are")
            self.notes.append(
                f"nodes: {columns} not used, because the model was not trained on them: {listed}"
            )

    def _reduce(self, source: Source, prepared: Preparation, width: int) -> None:
        """Leaves out what the table does not have."""
        if len(prepared.features) != width:
            wanted = f"{len(prepared.features)} features come from tables"
            raise GraphError(f"{source.name}: {wanted}, and the graph has {width}")
        kept, absent, start = [], [], 0
        places: list[int] = []
        for column in prepared.columns:
            here = range(start, start + len(column.features))
            start = here.stop
            if column.name in source.columns:
                kept.append(column)
                places += here
            else:
                absent.append(column.name)
        beside: dict[str, Any] = {"tags": prepared.tags, "vectors": prepared.vectors}
        for option, one in prepared.beside:
            here, name = range(start, start + len(one.features)), option.removeprefix("--")
            start = here.stop
            if getattr(self.options, name) is None:
                beside[name] = None
                absent.append(option)
            else:
                places += here
        self.absent, self.features = tuple(absent), np.array(places, np.int64)
        reduced = replace(prepared, columns=tuple(kept), **beside)
        self.options = replace(self.options, preparation=reduced)
        if not kept and beside == {"tags": None, "vectors": None}:
            self.options = replace(self.options, features="structural", preparation=None)


def _columns_of(given: Any, options: TableOptions) -> Source:
    """Returns the node table, to look at its columns; it is read later."""
    with Duck() as duck:
        source = open_source(duck, given, role="nodes", header=options.header, names=options.names)
        return source.nodes or source


def _found(source: Source, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the columns that a table has of some that the training had."""
    known = {column.strip().lower() for column in source.columns}
    wanted = [name for name in names if name.strip().lower() in known]
    return table_columns.find_all(source, wanted, "--label")


def _refuse_labels(source: Source, names: Sequence[str]) -> None:
    """Refuses columns that look like labels or splits: as features they would leak."""
    for name in names:
        if found := table_columns.refusal(source, name):
            raise GraphError(found[0])


def _single(name: str | None) -> tuple[str, ...]:
    return () if name is None else (name,)


def _ids(tables: Tables) -> Array:
    column = tables.node_ids()
    found: Array = np.arange(tables.num_nodes) if column is None else ids_of_column(column)[:]
    return found


def _features(tables: Tables, rows: int) -> Any:
    width = tables.num_features
    if not width:
        return None
    if tables.is_sparse:
        parts = InMemory()
        tables.fill_sparse_features(parts)
        arrays = tuple(parts.arrays[name] for name in ("x_data", "x_indices", "x_indptr"))
        return scipy.sparse.csr_array(arrays, shape=(tables.num_nodes, width))[:rows]
    x = np.zeros((tables.num_nodes, width), np.float32)
    tables.fill_features(x)
    return x[:rows]


def _with_edges(found: NewTables, tables: Tables) -> NewTables:
    arrays = InMemory()
    tables.fill_structure(arrays)
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
    return found


def read_pairs(edges: Any, options: TableOptions) -> NewTables:
    """Reads a list of edges to remove."""
    plain = TableOptions(
        header=options.header,
        source_column=options.source_column,
        target_column=options.target_column,
    )
    with _opened(edges, plain, _named(edges, "remove_edges")) as tables:
        return _with_edges(NewTables(_ids(tables)), tables)


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
        wanted = _found(source, _single(options.id_column))
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
