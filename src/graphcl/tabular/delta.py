"""Tables that say what changes in a graph: new nodes and edges, and lists of what is removed.

They are read as the tables of the training were, by its preparation: no mean, category or scale is
fitted again. Nodes are named by their ids; `graphcl.updating.matching` finds them in the graph.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, counted
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Key
from graphcl.store.header import MASKS
from graphcl.tabular import columns as table_columns
from graphcl.tabular.build import fill_structure, node_fields, typed_graph
from graphcl.tabular.columns import IdColumn
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.edges import find_ends
from graphcl.tabular.features import InMemory
from graphcl.tabular.nodes import NodeSource, NoRowsError, NumberedNodes
from graphcl.tabular.options import (
    BESIDE,
    COLUMNS,
    COMMON,
    OF_BOTH,
    OF_EDGES,
    TableOptions,
    by_name,
)
from graphcl.tabular.preparation import NUMBER, Column, Preparation
from graphcl.tabular.report import listed
from graphcl.tabular.sources import Source, open_source
from graphcl.tabular.tables import Tables, open_tables

Array = npt.NDArray[Any]
_FAR = 1e38  # a column of unknown range
_NOTHING = "nothing"  # a relation without edges, where tables of nodes come alone
_NO_EDGES = {"source": np.array([], np.str_), "target": np.array([], np.str_)}


@dataclass(eq=False)
class NewNodes:
    """What tables say of the nodes of one type.

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


@dataclass(eq=False)
class NewEdges:
    """What a list says of the edges of one relation.

    Attributes:
        pairs: sources and targets, as places in the ids of their types, ``[m, 2]``, each once.
        table: the list's name in messages.
        weight: of the edges, or None.
        features: of the edges, or None.
    """

    pairs: Array
    table: str
    weight: Array | None = None
    features: Array | None = None


@dataclass(eq=False)
class NewTables:
    """What tables of nodes and lists of edges say, by type and relation; lines for the user."""

    nodes: dict[str, NewNodes] = field(default_factory=dict)
    edges: dict[Key, NewEdges] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_new(
    graph: Graph,
    options: TableOptions,
    *,
    nodes: Mapping[str, Any],
    edges: Mapping[Key, Any],
    computed: int = 0,
) -> NewTables:
    """Reads tables of new and changed nodes, and of new edges.

    Labels and splits of the training are read where a table has their columns.

    Args:
        graph: the graph that changes.
        options: how tables are read, with the preparations of the training.
        nodes: tables by type.
        edges: lists by relation.
        computed: how many of the last features are computed from edges.

    Raises:
        GraphError: a table is wrong; the message says where.
    """
    if not nodes and options.tags is not None:
        raise GraphError("update: --tags needs --nodes, which names the nodes that change")
    if not nodes and not edges:
        return NewTables()
    chosen = {
        name: _Columns(
            of_type(graph, options, name, table),
            graph.nodes[name],
            computed,
            _named(table, "nodes" if graph.is_plain else f"nodes {name}"),
        )
        for name, table in nodes.items()
    }
    read = _read_plain if graph.is_plain else _read_typed
    found = read(graph, options, chosen, edges)
    for name, one in chosen.items():
        new = found.nodes[name]
        width = 0 if new.x is None else new.x.shape[1]
        if width != len(one.features):
            wanted = graph.nodes[name].num_features - computed
            raise GraphError(
                f"{one.table}: has {counted(width, 'feature')}; the graph has {wanted}"
            )
        new.features, new.absent, new.table = one.features, one.absent, one.table
        found.notes += one.notes
    return found


def _read_plain(
    graph: Graph, options: TableOptions, chosen: Mapping[str, "_Columns"], edges: Mapping[Key, Any]
) -> NewTables:
    """Reads the tables of a plain graph."""
    name, key = graph.only_type.name, graph.only_relation.key
    table = next(iter(edges.values()), None)
    if not chosen:
        return read_pairs(graph, options, edges, weight=options.weight)
    one = chosen[name]
    # Nodes that only edges name are nodes of the graph; whether they are is not known here.
    read = replace(one.options, unknown_edges="add")
    without = table is None
    if without:
        table = _NO_EDGES
        read = replace(read, source_column="source", target_column="target", weight=None)
    with _opened(table, read, one.table) as tables:
        found = NewTables({name: _new_nodes(node_fields(tables.plain), tables.plain, one)})
        found.edges[key] = _plain_edges(tables, "edges" if without else _named(table, "edges"))
        if without:  # the list of edges is ours
            del found.edges[key]
        ours = "edges:" if without else "\0"
        found.notes = [line for line in _said(tables) if not line.startswith(ours)]
    return found


def _read_typed(
    graph: Graph, options: TableOptions, chosen: Mapping[str, "_Columns"], edges: Mapping[Key, Any]
) -> NewTables:
    """Reads the tables of a graph with types.

    A type without a table has one of the ids that the graph has: edges name them alone.
    """
    lists: dict[str, Any] = {":".join(key): table for key, table in edges.items()}
    tables: dict[str, Any] = {name: one.options.nodes for name, one in chosen.items()}
    columns = {name: one.identity for name, one in chosen.items()}
    for name in {end for key in edges for end in key[::2]} - set(tables):
        own = graph.nodes[name]
        listed = np.arange(own.num_nodes) if own.node_ids is None else own.node_ids[:]
        tables[name], columns[name] = {"id": listed}, "id"
    if not lists:  # a graph has relations: one without edges
        first = next(iter(tables))
        lists = {f"{first}:{_NOTHING}:{first}": _NO_EDGES}
    given: dict[str, Any] = {
        "label": {name: one.options.label for name, one in chosen.items() if one.options.label},
        "split": {name: one.options.split for name, one in chosen.items() if one.options.split},
    }
    given |= _of_lists(graph, options, edges)
    given |= dict.fromkeys(OF_BOTH, ())  # what columns become is known
    prepared = {
        name: one.options.preparation or Preparation(())
        for name, one in chosen.items()
        if one.identity  # else it is a matrix
    }
    for option in BESIDE:
        beside = {name: getattr(one.options, option) for name, one in chosen.items()}
        given[option] = {name: one for name, one in beside.items() if one not in (None, ())} or None
    read = replace(
        options,
        **given,
        nodes=tables,
        edges=lists,
        id_column={name: one for name, one in columns.items() if one},
        unknown_edges="add",
        preparations=prepared,
        directed=False,
    )
    found = NewTables()
    with _opened(None, read, ", ".join(_named(one, "nodes") for one in tables.values())) as opened:
        delta = typed_graph(opened, read)
        for name, numbered in opened.nodes.items():
            found.nodes[name] = _new_nodes(vars(delta.nodes[name]), numbered, chosen.get(name))
        for key, table in edges.items():
            found.edges[key] = _typed_edges(graph, delta, key, _named(table, f"edges {key[1]}"))
        usual = ("that only edges name", "no edge", f":{_NOTHING}:", f"edges {_NOTHING}")
        said = [*opened.report.first, *opened.report.notes]
        found.notes = [line for line in said if not any(one in line for one in usual)]
    return found


def _typed_edges(graph: Graph, delta: Graph, key: Key, table: str) -> NewEdges:
    """Returns the edges of a relation that a list has, each once."""
    listed, own = delta.relations[key], graph.relations[key]
    pairs, once = listed.edge_index().T, np.arange(len(listed.indices))
    weight, features = listed.edge_weight, listed.edge_features
    if listed.undirected:
        once = np.flatnonzero(pairs[:, 0] < pairs[:, 1])
    elif own.undirected and features is None:  # some edges may be listed in both directions
        codes = np.sort(pairs, axis=1) @ np.array([delta.nodes[key[0]].num_nodes, 1])
        _, once, places = np.unique(codes, return_index=True, return_inverse=True)
        if weight is not None:
            weight = weight.copy()
            weight[once] = np.bincount(places, weight)
    return NewEdges(
        pairs[once],
        table,
        None if weight is None else weight[once],
        None if features is None else features[once],
    )


def _of_lists(graph: Graph, options: TableOptions, edges: Mapping[Key, Any]) -> dict[str, Any]:
    """Returns the options of lists of edges: columns that these have, and what becomes of them."""
    known = [key[1] for key in graph.relations]
    found: dict[str, Any] = {option: {} for option in OF_EDGES}
    prepared = {}
    for key, table in edges.items():
        own, text = graph.relations[key], ":".join(key)
        with Duck() as duck:
            source = _open(duck, table, "edges", options)
            for option in OF_EDGES:
                for relation, column in by_name(option, getattr(options, option), known):
                    if relation in ("", key[1]) and _found(source, (column,)):
                        found[option][key[1]] = column
            if own.num_edge_features:
                prepared[text] = (options.edge_preparations or {}).get(text)
            if own.num_edge_features and prepared[text] is None:
                columns = {option: found[option].get(key[1]) for option in OF_EDGES}
                used = find_ends(source, replace(options, **columns, edges=None, nodes=None), ())[1]
                names = [one for one in source.columns if one not in {*used, columns["weight"]}]
                prepared[text] = _as_they_are(source, names, own.num_edge_features)
    of = {option: columns or None for option, columns in found.items()}
    return {**of, "edge_preparations": prepared}


def of_type(graph: Graph, options: TableOptions, name: str, table: Any) -> TableOptions:
    """Returns the options that are of the table of one type."""
    if graph.is_plain:
        return replace(options, nodes=table)
    found: dict[str, Any] = {}
    for option in (*COLUMNS, "id_column", "split", *BESIDE):
        pairs = by_name(option, getattr(options, option), graph.nodes)
        own = [value for kind, value in pairs if kind == name]
        # A label of no type is that of the type that has labels.
        shared = option != "label" or graph.labelled_type in ("", name)
        own += [value for kind, value in pairs if not kind and shared and option not in BESIDE]
        if own:
            found[option] = tuple(own) if option in COLUMNS else own[0]
    if "label" in found:
        found["label_separator"] = options.label_separator
    found |= {option: getattr(options, option) for option in COMMON}
    prepared = (options.preparations or {}).get(name)
    return TableOptions(nodes=table, **found, preparation=prepared)


def _new_nodes(fields: Mapping[str, Any], nodes: NumberedNodes, one: Any) -> NewNodes:
    """Returns what tables say of the nodes of a type; `one` are its columns, if it has a table."""
    ids: Any = fields.get("node_ids")
    listed: Array = np.arange(nodes.num_nodes) if ids is None else ids[:]
    if one is None:
        return NewNodes(listed)
    filled = nodes.report.filled_values
    if one.exact and filled:
        missing = counted(filled, "value is", "values are")
        raise GraphError(f"{one.table}: {missing} missing; every feature needs one")
    rows = nodes.num_nodes - nodes.report.added_nodes  # nodes that edges add come last
    x, y = fields.get("x"), fields.get("y")
    return NewNodes(
        listed,
        rows,
        None if x is None else x[:rows],
        y=None if y is None else y[:rows],
        class_names=tuple(fields["class_names"]),
        masks={mask: fields[mask][:rows] for mask in MASKS if fields.get(mask) is not None},
    )


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

    Args:
        options: of this table.
        own: the nodes of its type in the graph.
        computed: how many of the last features are computed from edges.
        table: its name in messages.

    Attributes:
        options: the options to read it with.
        identity: the column of ids; empty if it is a matrix.
        features: the features that its columns become.
        absent: what the training had and the table has not.
        table: that name.
        notes: what to say of columns that are not read.
        exact: whether there is no preparation, so that nothing says what fills a hole.
    """

    def __init__(self, options: TableOptions, own: Nodes, computed: int, table: str) -> None:
        width = own.num_features - computed
        self.absent: tuple[str, ...] = ()
        self.identity = ""
        self.features = np.arange(width)
        self.notes: list[str] = []
        given, prepared = options.nodes, options.preparation
        self.exact = False
        self.table = table
        with Duck() as duck:  # to look at its columns; it is read later
            opened = NodeSource(duck, given, options)
        source = opened.source
        if opened.matrix is not None or source is None:
            self.options = replace(options, label=(), split=None, preparation=None)
            return
        identity = self.identity = table_columns.identity(source, options.id_column)[0]
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


def _named(given: Any, name: str) -> str:
    return given if isinstance(given, str) else name


def _plain_edges(tables: Tables, table: str) -> NewEdges:
    """Returns the edges of a plain graph, each once."""
    arrays = InMemory()
    fill_structure(tables, arrays)
    indptr, indices = arrays.arrays["indptr"], arrays.arrays["indices"]
    ends = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    once = ends < indices
    pairs = np.stack([ends[once], indices[once].astype(np.int64)], axis=1)
    weight = arrays.arrays.get("edge_weight")
    return NewEdges(pairs, table, None if weight is None else weight[once])


def _said(tables: Tables) -> list[str]:
    """Returns what is said of tables that change a plain graph."""
    # That edges name nodes of the graph, or that a node has none here, is as it should be.
    usual = ("added, with features of zero", "no edge")
    said = [*tables.report.first, *tables.report.notes]
    return [line for line in said if not any(one in line for one in usual)]


def read_pairs(
    graph: Graph,
    options: TableOptions,
    edges: Mapping[Key, Any],
    *,
    weight: Any = None,
    role: str = "edges",
) -> NewTables:
    """Reads lists of edges whose ends are nodes of the graph: new ones, or those to remove."""
    if not graph.is_plain:
        bare = {key: replace(one, edge_features=None) for key, one in graph.relations.items()}
        return _read_typed(
            replace(graph, relations=bare), replace(options, weight=weight), {}, edges
        )
    (key, table), *_ = edges.items()
    columns = {one: getattr(options, one) for one in ("header", "source_column", "target_column")}
    with _opened(table, TableOptions(weight=weight, **columns), _named(table, role)) as tables:
        ids = tables.plain.node_ids()
        listed = np.arange(tables.plain.num_nodes) if ids is None else ids[:]
        listed_edges = {key: _plain_edges(tables, _named(table, role))}
        return NewTables({key[0]: NewNodes(listed)}, listed_edges, _said(tables))


def _open(duck: Duck, given: Any, role: str, options: TableOptions) -> Source:
    return open_source(duck, given, role=role, header=options.header, names=options.names)


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
        source = _open(duck, given, "remove-nodes", options)
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
