"""Tables that say what changes in a graph: new nodes and edges, and lists of what is removed.

They are read as the tables of the training were, by its preparation: no mean, category or scale is
fitted again. Nodes are named by their ids; `graphcl.updating.matching` finds them in the graph.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from graphcl.arrays import Array
from graphcl.errors import GraphError, counted, demand, option
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Key, Relation
from graphcl.store.header import MASKS
from graphcl.tabular import columns as table_columns
from graphcl.tabular.build import fill_graph
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.edges import find_ends
from graphcl.tabular.nodes import NodeSource, NoRowsError, NumberedNodes
from graphcl.tabular.options import (
    BESIDE,
    COLUMNS,
    COMMON,
    LABELS,
    OF_BOTH,
    OF_EDGES,
    TIMES,
    TableOptions,
    by_name,
    having,
)
from graphcl.tabular.preparation import NUMBER, Column, Preparation
from graphcl.tabular.report import Usual, listed
from graphcl.tabular.sources import Source, open_source
from graphcl.tabular.tables import open_tables
from graphcl.tabular.times import has_age_alone

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
    """What tables of nodes and lists of edges say, by type and relation; lines for the user.

    `until` is the time until which rows count, if they have times.
    """

    nodes: dict[str, NewNodes] = field(default_factory=dict)
    edges: dict[Key, NewEdges] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    until: str = ""


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
    demand(
        nodes or options.tags is None,
        f"update: {option('tags')} needs {option('nodes')}, which names the nodes that change",
    )
    if not nodes and not edges:
        return NewTables()
    chosen = {
        name: _Columns(
            of_type(graph, options, name, table),
            graph.nodes[name],
            computed,
            name_of(table, "nodes" if graph.is_plain else f"nodes {name}"),
        )
        for name, table in nodes.items()
    }
    found = _read(graph, options, chosen, edges)
    found.notes += [line for one in chosen.values() for line in one.notes]
    return found


def read_pairs(graph: Graph, options: TableOptions, edges: Mapping[Key, Any]) -> NewTables:
    """Reads lists of edges to remove, whose ends are nodes of the graph."""
    bare = {key: replace(one, edge_features=None) for key, one in graph.relations.items()}
    unweighted = replace(options, weight=None, time=(), label_time=(), until=None)
    return _read(replace(graph, relations=bare), unweighted, {}, edges, "remove_edges")


def _read(
    graph: Graph,
    options: TableOptions,
    chosen: Mapping[str, "_Columns"],
    edges: Mapping[Key, Any],
    role: str = "edges",
) -> NewTables:
    """Reads tables as a graph of their own, to which nodes belong that only edges name.

    They are nodes of the graph that changes; whether they are is not known here.
    """
    table = next(iter(edges.values()), _NO_EDGES) if graph.is_plain else None
    if graph.is_plain:
        options = _plain_options(options, chosen, bool(edges))
    else:
        options = _typed_options(graph, options, chosen, edges)
    try:
        with open_tables(table, replace(options, unknown_edges="add")) as opened:
            delta, numbered = fill_graph(opened), list(opened.nodes.values())
    except NoRowsError:
        names = [one.table for one in chosen.values()] or [name_of(table, role)]
        raise GraphError(
            f"{names[0]}: has no rows, so nothing would change; leave it out"
        ) from None
    found = NewTables()
    for place, own in enumerate(delta.nodes.values()):
        name = graph.only_type.name if graph.is_plain else own.name
        found.nodes[name] = _new_nodes(own, numbered[place], chosen.get(name))
    for key, one in edges.items():
        listed = delta.only_relation if graph.is_plain else delta.relations[key]
        called = role if graph.is_plain else f"edges {key[1]}"
        found.edges[key] = _new_edges(graph.relations[key], listed, name_of(one, called))
    # That edges name nodes of the graph, or that a node has none here, is as it should be.
    usual = ["that only edges name", "added, with features of zero", "no edge"]
    if not edges:
        usual += ["edges: ", f":{_NOTHING}:", f"edges {_NOTHING}"]
    report = opened.report
    report.types = {name: one for name, one in report.types.items() if name in chosen}
    said = [*report.first, *report.lines]
    found.notes = [line for line in said if not any(one in line for one in usual)]
    found.until = report.until
    return found


def _plain_options(
    options: TableOptions, chosen: Mapping[str, "_Columns"], listed: bool
) -> TableOptions:
    """Returns how the tables of a plain graph are read; `listed` says if there are edges."""
    ends = ("source_column", "target_column")
    for one in chosen.values():
        own: dict[str, Any] = {**dict(zip(ends, _NO_EDGES, strict=True)), "weight": None}
        how = replace(one.options, age=False, preparations={})
        return how if listed else replace(how, **own)
    kept = (*ends, "header", "weight", "time", "until")
    return TableOptions(
        **{name: getattr(options, name) for name in kept}, age=False, preparations={}
    )


def _typed_options(
    graph: Graph, options: TableOptions, chosen: Mapping[str, "_Columns"], edges: Mapping[Key, Any]
) -> TableOptions:
    """Returns how the tables of a graph with types are read.

    A type without a table has one of the ids that the graph has: edges name them alone.
    """
    lists: dict[str, Any] = {":".join(key): table for key, table in edges.items()}
    tables: dict[str, Any] = {name: one.options.nodes for name, one in chosen.items()}
    columns = {name: one.identity for name, one in chosen.items()}
    for name in {end for key in edges for end in key[::2]} - set(tables):
        tables[name], columns[name] = {"id": graph.nodes[name].ids[:]}, "id"
    if not lists:  # a graph has relations: one without edges
        first = next(iter(tables))
        lists = {f"{first}:{_NOTHING}:{first}": _NO_EDGES}
    given = _of_lists(graph, options, edges)
    given |= dict.fromkeys(OF_BOTH, ())  # what columns become is known
    for keyword in ("label", "split", *BESIDE):
        own = {name: getattr(one.options, keyword) for name, one in chosen.items()}
        given[keyword] = {name: one for name, one in own.items() if one not in (None, ())} or None
    prepared = {
        name: one.options.preparation or Preparation(())
        for name, one in chosen.items()
        if one.identity  # else it is a matrix
    }
    kinds = {one.options.label_kind for one in chosen.values() if one.options.label}
    given["label_kind"] = kinds.pop() if len(kinds) == 1 else "auto"
    return replace(
        options,
        **given,
        nodes=tables,
        edges=lists,
        id_column={name: one for name, one in columns.items() if one},
        preparations=prepared,
        directed=False,
    )


def _new_edges(own: Relation, listed: Relation, table: str) -> NewEdges:
    """Returns the edges of a relation that a list has, each once."""
    pairs, once = listed.edge_index().T, np.arange(len(listed.indices))
    weight, features = listed.edge_weight, listed.edge_features
    if listed.undirected:
        pairs = pairs[:, ::-1]
        once = np.flatnonzero(pairs[:, 0] < pairs[:, 1])
    elif own.undirected and (features is None or has_age_alone(own)):
        # Some edges may be listed in both directions.
        codes = np.sort(pairs, axis=1) @ np.array([len(listed.indptr) - 1, 1])
        _, once, places = np.unique(codes, return_index=True, return_inverse=True)
        if weight is not None:
            weight = weight.copy()
            weight[once] = np.bincount(places, weight)
        if features is not None:
            features = features.copy()
            np.minimum.at(features, once[places], features.copy())
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
            source = open_source(duck, table, role="edges", options=options)
            for option in OF_EDGES:
                for relation, column in by_name(option, getattr(options, option), known):
                    if relation in ("", key[1]) and having(source.columns, [column]):
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
    for keyword in (*COLUMNS, "id_column", "split", *BESIDE):
        pairs = by_name(keyword, getattr(options, keyword), graph.nodes)
        own = [value for kind, value in pairs if kind == name]
        # A label of no type is that of the type that has labels.
        shared = keyword != "label" or graph.labelled_type in ("", name)
        own += [value for kind, value in pairs if not kind and shared and keyword not in BESIDE]
        if own:
            found[keyword] = tuple(own) if keyword in COLUMNS else own[0]
    if "label" in found:
        found |= {keyword: getattr(options, keyword) for keyword in LABELS}
    found |= {keyword: getattr(options, keyword) for keyword in (*COMMON, *TIMES)}
    prepared = (options.preparations or {}).get(name)
    return TableOptions(nodes=table, **found, preparation=prepared)


def _new_nodes(own: Nodes, numbered: NumberedNodes, one: "_Columns | None") -> NewNodes:
    """Returns what tables say of the nodes of a type; `one` are its columns, if it has a table."""
    listed: Array = own.ids[:]
    if one is None:
        return NewNodes(listed)
    filled = numbered.report.filled_values
    demand(
        not (one.exact and filled),
        f"{one.table}: {counted(filled, 'value is', 'values are')} missing; every feature needs "
        "one",
    )
    width = own.num_features
    demand(
        width == len(one.features),
        f"{one.table}: has {counted(width, 'feature')}; the graph has {len(one.features)}",
    )
    rows = own.num_nodes - numbered.report.added_nodes  # nodes that edges add come last
    masks = {mask: getattr(own, mask) for mask in MASKS if getattr(own, mask) is not None}
    return NewNodes(
        listed,
        rows,
        None if own.x is None else own.x[:rows],
        one.features,
        one.absent,
        one.table,
        y=None if own.y is None else own.y[:rows],
        class_names=own.class_names,
        masks={name: mask[:rows] for name, mask in masks.items()},
    )


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
        width, prepared = own.num_features - computed, options.preparation
        self.table, self.identity, self.exact = table, "", False
        self.features, self.absent = np.arange(width), tuple[str, ...]()
        self.notes: list[str] = []
        with Duck() as duck:  # to look at its columns; it is read later
            opened = NodeSource(duck, options.nodes, options, options.node_ids)
        source = opened.source
        if opened.matrix is not None or source is None:
            self.options = replace(options, label=(), split=None, preparation=None)
            return
        identity = self.identity = table_columns.identity(source, options.id_column)[0]
        labels = tuple(having(source.columns, options.label))
        split = having(source.columns, [options.split] if options.split else ())
        ignored = table_columns.find_all(source, options.ignore, "ignore")
        self.options = replace(options, label=labels, split=split[0] if split else None)
        if own.y is not None and options.label_kind == "auto":  # as those that the graph has
            kind = "number" if own.has_number else "classes"
            self.options = replace(self.options, label_kind=kind)
        times = [text.rpartition("=")[2] for text in (*options.time, *options.label_time)]
        used = {identity, *labels, *split, *ignored, *having(source.columns, times)}
        names = [name for name in source.columns if name not in used]
        if width and prepared is None:
            self.exact, prepared = True, _as_they_are(source, names, width)
        elif width and prepared is not None:
            prepared = self._reduce(source, prepared, width)
            trained = {column.name for column in prepared.columns}
            extra = [repr(name) for name in names if name not in trained]
            columns = counted(len(extra), "column is", "columns are")
            why = "not used, because the model was not trained on them"
            self.notes += [f"nodes: {columns} {why}: {listed(extra)}"] if extra else []
        read = width > 0 and prepared is not None and bool(prepared.features)
        how: Any = {"preparation": prepared} if read else {"features": "structural"}
        self.options = replace(self.options, **{"preparation": None, **how})

    def _reduce(self, source: Source, prepared: Preparation, width: int) -> Preparation:
        """Leaves out what the table does not have."""
        demand(
            len(prepared.features) == width,
            f"{source.name}: {len(prepared.features)} features come from tables, and the graph has "
            f"{width}",
        )
        parts = [(one.name, one.features, one.name in source.columns) for one in prepared.columns]
        beside = {one.kind: getattr(self.options, one.kind) is not None for one in prepared.beside}
        parts += [(option(one.kind), one.features, beside[one.kind]) for one in prepared.beside]
        self.absent = tuple(name for name, _, there in parts if not there)
        owned = np.repeat([there for _, _, there in parts], [len(own) for _, own, _ in parts])
        self.features = np.flatnonzero(owned)
        kept = tuple(one for one in prepared.columns if one.name in source.columns)
        gone: dict[str, Any] = {name: None for name, there in beside.items() if not there}
        return replace(prepared, columns=kept, **gone)


def _as_they_are(source: Source, names: Sequence[str], width: int) -> Preparation:
    """Returns a preparation that takes columns as numbers, in order."""
    for name in names:
        if found := table_columns.refusal(source, name):  # as a feature it would leak
            raise GraphError(found[0])
    demand(
        len(names) == width,
        f"{source.name}: has {counted(len(names), 'column')} of features; the graph has {width}, "
        "and they are taken in order",
    )
    return Preparation(tuple(Column(one, NUMBER, (one,), low=-_FAR, high=_FAR) for one in names))


def name_of(given: Any, name: str) -> str:
    """Returns what messages call a table: its file, or a name."""
    return given if isinstance(given, str) else name


def read_ids(given: Any, options: TableOptions) -> tuple[Array, list[str]]:
    """Reads a list of nodes to remove: a table with a column of ids; in Python also a list.

    Returns:
        The ids, and lines for the user.
    """
    if isinstance(given, list | tuple | np.ndarray):
        ids = np.asarray(given)
        if ids.dtype.kind not in "iu":
            ids = np.array(list(map(str, given)))
        demand(len(ids), "remove_nodes: has no ids, so nothing would change; leave it out")
        return ids, []
    with Duck() as duck:
        source = open_source(duck, given, role="remove-nodes", options=options)
        wanted = having(source.columns, [options.id_column] if options.id_column else ())
        name, how = table_columns.identity(source, wanted[0] if wanted else None)
        duck.run(f"CREATE TABLE gone AS SELECT {quoted(name)} AS key FROM {source.relation}")
        column = table_columns.IdColumn(source, name, "gone", "key")
        column.check_present(duck)
        kind = column.kind(duck)
        rows = duck.rows(f"SELECT DISTINCT CAST(key AS {kind}) AS key FROM gone ORDER BY key")
        demand(rows, f"{source.name}: has no rows, so nothing would change; leave it out")
        types: dict[str, Any] = {"BIGINT": np.int64, "UBIGINT": np.uint64}
        note = Usual(f"nodes to remove: {source.name}: ids in {name!r} ({how})")
        return np.array([one for (one,) in rows], types.get(kind, np.str_)), [note]
