"""Builds a graph in memory from tables, or a store, whole or in parts, larger than memory.

What grows with the edges is sorted and joined by DuckDB, on disk if need be, and written in batches
as it comes out. A store is what `load_tables` would read and `save` would write.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, StoreError, counted
from graphcl.graphs.collection import fingerprint
from graphcl.graphs.conversion import describe_reverse, find_reverse, without_reverses
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import EDGE, NODE, Key, Relation
from graphcl.graphs.structural import FEATURE_NAMES, structural_features
from graphcl.store.header import Source, edges_name, nodes_name, read_store
from graphcl.store.moving import number_edges
from graphcl.store.reader import EDGE_DTYPES
from graphcl.store.writer import ArrayWriter, StoreWriter, write_names
from graphcl.tabular.edges import EdgeList, FoundRelation
from graphcl.tabular.entries import (
    BLOCK,
    SymmetricEntries,
    directed_entries,
    fill_csr,
    mapped_array,
)
from graphcl.tabular.features import ArraySink, InMemory
from graphcl.tabular.nodes import NumberedNodes
from graphcl.tabular.options import TableOptions, holds_tables
from graphcl.tabular.preparation import read_preparation, write_preparation
from graphcl.tabular.report import TableReport, say_isolated
from graphcl.tabular.tables import Tables, open_tables

JOINING = 3  # times the size of its files: what a graph in parts takes while it is joined
_FLOAT32 = np.finfo(np.float32)


def read_tables(edges: Any = None, nodes: Any = None, **options: Any) -> Any:
    """Reads tables into a graph in memory.

    Args:
        edges: a list of edges: `.csv`, `.tsv`, `.parquet`, gzipped or not, a whitespace-separated
            list, GraphML, GML, a SciPy `.npz`, ``FILE:TABLE`` of a DuckDB or SQLite database, an
            SQL query, or a table in memory: of pandas, Polars or Arrow. Of a typed graph, a mapping
            from relations to such lists: ``{"writes": "writes.csv"}``. The types of the ends are
            guessed from ids, or said: ``{("author", "writes", "paper"): "writes.csv"}``.
        nodes: a table of nodes in one of the same forms, or a feature matrix: `.npy`, `.npz`, or
            one of NumPy or SciPy, whose rows have the ids `node_ids`. Of a typed graph, a mapping
            from types to such tables: ``{"author": "authors.csv", "paper": "papers.parquet"}``.
        options: see `graphcl.tabular.options.TableOptions`.

    Returns:
        A `Graph`; a `Graph` if `edges` or `nodes` is such a mapping, or with the options
        `relation` or `directed`.

    Raises:
        GraphError: a table is wrong; the message names the table, row and column, the value, and
            what to do.
    """
    given = {"nodes": nodes, **options}
    given = {name: str(one) if isinstance(one, Path) else one for name, one in given.items()}
    source = str(edges) if isinstance(edges, Path) else edges
    if holds_tables(source):
        source, given["edges"] = None, source
    found = TableOptions(**given)
    if source is None and not found.is_typed:
        raise GraphError("read_tables: edges are missing")
    return load_tables(source, found)[0]


def load_tables(edges: Any, options: TableOptions) -> tuple[Any, TableReport]:
    """Reads tables into a graph in memory; also returns a report on what was found in them.

    Args:
        edges: a list of edges; of a typed graph, one beside those of `options.edges`, or None.
        options: how to read the tables.

    Returns:
        A `Graph`, or a `Graph` if the options are those of one, and the report.

    Raises:
        GraphError: tables are wrong; the message lists all that is.
    """
    with open_tables(edges, options) as tables:
        if options.is_typed:
            return typed_graph(tables, options), tables.report
        nodes, arrays = tables.plain, InMemory()
        width = _width(nodes)
        fill_structure(tables, arrays)
        fields = node_fields(nodes, width - nodes.num_features)
        _add_structural(nodes, arrays.arrays, fields["x"])
        fields |= arrays.arrays | {"self_loops_removed": tables.report.counts.self_loops}
        return Graph.from_csr(name=tables.name, **fields), tables.report


def check_tables(edges: str, options: TableOptions) -> tuple[dict[str, int], TableReport]:
    """Reads tables and makes nothing of them; returns counts, and what would become of them.

    Raises:
        GraphError: what `load_tables` would raise.
    """
    with open_tables(edges, options) as tables:
        width = _width(tables.plain)
        fill_structure(tables, InMemory())
        counts = {"nodes": tables.plain.num_nodes, "edges": tables.report.counts.edges}
        return counts | {"features": width, "classes": tables.plain.num_classes}, tables.report


def node_fields(nodes: NumberedNodes, further: int = 0) -> dict[str, Any]:
    """Returns what a graph has of its nodes, with room for further features."""
    fields: dict[str, Any] = {"y": nodes.labels(), **nodes.masks()}
    if nodes.num_features + further:
        fields["x"] = nodes.features(further)
    ids, report = nodes.node_ids(), nodes.report
    fields |= {} if ids is None else {"node_ids": ids}
    return fields | {"class_names": report.class_names, "preparation": report.preparation}


def typed_graph(tables: Tables, options: TableOptions) -> Graph:
    """Returns the graph of tables with types, in memory."""
    fields = {
        kind: {"num_nodes": n.num_nodes, **node_fields(n)} for kind, n in tables.nodes.items()
    }
    relations: dict[Key, dict[str, Any]] = {}
    for table in tables.lists:
        for one in table.relations:
            table.create_pairs(one)
            weight = ", w" if table.weight is not None else ""
            query = f"SELECT u, v{weight} FROM pairs ORDER BY place"
            u, v, *weights = table.duck.arrays(query)
            about: dict[str, Any] = {"edge_index": np.stack([u, v]).astype(np.int64)}
            if weights:
                about["edge_weight"] = weights[0]
            if one.features.width:
                about["edge_features"] = one.features.table(one.rows)
                about["preparation"] = one.features.preparation
            if options.directed:
                about["undirected"] = False
            relations[one.types[0], one.name, one.types[1]] = about
    whole = Graph.from_edges(fields, relations, name=tables.name)
    graph: Graph
    graph, said = without_reverses(whole)
    _complete_report(tables, graph, said)
    return graph


def build_store(
    graph: Any,
    options: TableOptions | None = None,
    *,
    out: Path,
    parts: int = 1,
    order: str = "neighbours",
    overwrite: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> TableReport:
    """Writes a store, whole or in parts, which appears complete or not at all.

    Args:
        graph: with `options`, tables; else a graph in memory, or the path of a store to divide,
            which stays. `graphcl.store.partition` says how, and what memory it takes. To divide
            tables or a graph, a whole store is built first, hidden beside the parts.
        options: how to read the tables.
        out: the folder.
        parts: how many.
        order: how nodes are divided.
        overwrite: replace an existing store.
        on_step: called with the name of each step before it starts.

    Returns:
        What was found in tables.

    Raises:
        GraphError: tables are wrong; the message lists all that is.
        StoreError: something is at `out`, or the store is missing or damaged.
    """
    if parts == 1 and isinstance(graph, Graph):
        graph.save(out, overwrite=overwrite)
        return TableReport()
    with StoreWriter(out, parts=parts, overwrite=overwrite) as store:
        if parts == 1 and options is not None:
            return _fill_store(store, graph, options, on_step=on_step)
        report, hidden = TableReport(), store.folder / "whole"
        if options is not None or isinstance(graph, Graph):
            report = build_store(graph, options, out=hidden, on_step=on_step)
            if (nodes := read_store(hidden).num_nodes) < parts:
                raise StoreError(f"build: {nodes} nodes are too few for {parts} parts")
            _divide(store, hidden, parts, order, on_step)
            shutil.rmtree(hidden)
        else:
            _divide(store, Path(graph), parts, order, on_step, named=str(graph))
        return report


def _divide(
    store: StoreWriter,
    whole: Path,
    parts: int,
    order: str,
    on_step: Callable[[str], None],
    *,
    named: str = "",
) -> None:
    """Writes the parts of a store, and what prepared its features.

    `named` is where the store stays, if it does.
    """
    from graphcl.store.partition import divide  # loops, which import torch

    divide(store, whole, parts=parts, order=order, on_step=on_step)
    store.source = Source(fingerprint((Graph.open(whole),)), named)
    for file in map(Path, read_store(whole).source.beside):
        shutil.copyfile(whole / file, store.beside(file.parent.name) / file.name)


def _fill_store(
    store: StoreWriter,
    edges: Any,
    options: TableOptions,
    *,
    on_step: Callable[[str], None] = lambda _: None,
) -> TableReport:
    """Fills an open store, as `build_store` does."""
    with open_tables(edges, options, on_step=on_step) as tables:
        store.name = tables.name
        if options.is_typed:
            for kind, nodes in tables.nodes.items():
                on_step(f"writing the nodes of {kind}")
                _write_nodes(store, kind, nodes, nodes.num_features)
            _write_relations(store, tables, options, on_step)
            return tables.report
        width = _width(tables.plain)
        on_step("sorting the edges")
        loops = tables.report.counts.self_loops
        (writer,) = store.add_relation(EDGE, undirected=True, self_loops_removed=loops)
        fill_structure(tables, writer, index=np.int32)
        on_step("writing features, labels and ids")
        _write_nodes(store, NODE, tables.plain, width, writer)
        return tables.report


def _write_nodes(
    store: StoreWriter,
    kind: str,
    nodes: NumberedNodes,
    width: int,
    edges: ArrayWriter | None = None,
) -> None:
    """Writes features, labels, split and ids of a type; structural features are of `edges`."""
    place = len(store.types)
    (writer,) = store.add_type(kind, [0, nodes.num_nodes], nodes.report.class_names)
    if width and nodes.stays_sparse:
        writer.num_features = width
        nodes.fill_sparse_features(writer)
    elif width:
        x = writer.array("x", (nodes.num_nodes, width), np.float32)
        nodes.fill_features(x)
        if edges is not None and width > nodes.num_features:
            _add_structural(nodes, {name: edges.read(name) for name in ("indptr", "indices")}, x)
        del x
        writer.release("x")
    for name, values in {"y": nodes.labels(), **nodes.masks()}.items():
        if values is not None:
            writer.write(name, values)
    ids = nodes.node_ids()
    if ids is not None:
        write_names(writer, ids)
    if nodes.report.preparation is not None:
        write_preparation(store.beside(nodes_name(place)), nodes.report.preparation)


def fill_structure(tables: Tables, into: ArraySink, *, index: Any = np.int64) -> None:
    """Fills the arrays of a plain graph's edges, and reports on them."""
    (edges,), nodes, report = tables.lists, tables.plain, tables.report
    counts, weighted = report.counts, edges.weight is not None

    def adjust(weight: npt.NDArray[np.float32]) -> None:
        if counts.symmetric:
            weight *= np.float32(0.5)  # exact; both directions were added up
        if len(weight) and not (np.isfinite(weight).all() and (weight > 0).all()):
            raise GraphError(
                f"{edges.source.name}: the weights of an edge add up to a number outside the range "
                "of float32; divide them by a constant (only their ratios matter)"
            )

    indptr = fill_csr(
        into,
        SymmetricEntries(edges.duck, weighted, counts),
        rows=nodes.num_nodes,
        most=2 * (counts.rows - counts.self_loops),
        dtype=index,
        weighted=weighted,
        adjust=adjust,
    )
    report.isolated_nodes = int((np.diff(indptr) == 0).sum())
    merged = "weights added" if weighted else "merged"
    if counts.self_loops:
        report.notes.append(f"edges: {counted(counts.self_loops, 'self-loop')} left out")
    if counts.symmetric:
        report.notes.append("edges: each is listed in both directions")
    elif counts.both_directions:
        both = counted(counts.both_directions, "edge is", "edges are")
        report.notes.append(f"edges: {both} listed in both directions: {merged}")
    if counts.repeated:
        report.notes.append(f"edges: {counted(counts.repeated, 'repeated row')}: {merged}")
    say_isolated(report, "", report.isolated_nodes, nodes.num_nodes)


def _width(nodes: NumberedNodes) -> int:
    """Returns the number of features of a plain graph, which needs some."""
    structural = nodes.options.features in ("structural", "both")
    width = nodes.num_features + (len(FEATURE_NAMES) if structural else 0)
    if width == 0:
        none = nodes.options.nodes is None
        what = "no node table" if none else "no column that can be a feature"
        raise GraphError(
            f"the graph has no features ({what}): pass --nodes with numeric columns, or "
            "--features structural to compute features from the edges alone"
        )
    return width


def _add_structural(nodes: NumberedNodes, structure: Any, x: Any) -> None:
    """Fills the last columns of `x` with features from the edges alone, if they are wanted."""
    if nodes.options.features in ("structural", "both"):
        x[:, nodes.num_features :] = structural_features(structure["indptr"], structure["indices"])
        nodes.report.structural_features = list(FEATURE_NAMES)
        said = f"features from the edges alone: {'; '.join(FEATURE_NAMES)}"
        nodes.report.notes.append(said)


# Typed graphs


def _write_relations(
    store: StoreWriter,
    tables: Tables,
    options: TableOptions,
    on_step: Callable[[str], None],
) -> None:
    """Writes all relations but those that are others read backwards, and reports on them."""
    kept, said = list[Relation](), list[str]()
    for table in tables.lists:
        for one in table.relations:
            on_step(f"sorting the edges of {one.name}")
            targets = tables.nodes[one.types[1]].num_nodes
            written = _write_relation(store, table, one, options, targets)
            other, same = find_reverse(written, kept)
            if other is not None:
                said.append(describe_reverse(written, other, same=same))
            if same:  # another one read backwards
                store.drop_relation(written.key)
                continue
            if one.features.preparation is not None:
                folder = store.beside(edges_name(len(kept)))
                write_preparation(folder, one.features.preparation)
            kept.append(written)
    nodes = {kind: Nodes(kind, one.num_nodes) for kind, one in tables.nodes.items()}
    _complete_report(tables, Graph(nodes, {one.key: one for one in kept}), said)


def _write_relation(
    store: StoreWriter, table: EdgeList, one: FoundRelation, options: TableOptions, targets: int
) -> Relation:
    """Writes the edges of a relation, sorted by targets and sources, and maps them.

    An edge from a node to itself is left out if both ends are of one type.
    """
    source, target = one.types
    duck, width, weighted = table.duck, one.features.width, table.weight is not None
    table.create_pairs(one)
    where = "u <> v" if source == target else "true"
    (rows,) = duck.row(f"SELECT count(*) FROM pairs WHERE {where}")
    if weighted:
        _check_weights(table, one)
    undirected = source == target and not options.directed and rows > 0 and not width
    if undirected:  # whether each edge is listed in both directions, with one weight
        entries = SymmetricEntries(duck, weighted)
        for _ in entries:
            pass
        undirected = entries.counts.symmetric
    key, loops = (source, one.name, target), one.rows - rows
    (into,) = store.add_relation(key, undirected=undirected, self_loops_removed=loops)
    features = None
    if width and one.features.features is not None:
        features = mapped_array(duck.folder / "edge_features.npy", (one.rows, width), np.float32)
        one.features.features.fill(features)
    indptr = fill_csr(
        into,
        directed_entries(duck, where, weighted=weighted, features=features),
        rows=targets,
        most=rows,
        dtype=np.int64,
        weighted=weighted,
        width=width,
    )
    if undirected:
        indices = into.read("indices")
        number_edges(indptr, indices, into.array("edge_ids", indices.shape, np.int64))
    arrays: dict[str, Any] = {name: into.read(name) for name in EDGE_DTYPES if into.shape(name)}
    return Relation(*key, **arrays, undirected=undirected, self_loops_removed=loops)


def _check_weights(table: EdgeList, one: FoundRelation) -> None:
    largest = float(_FLOAT32.max) / max(1, 2 * one.rows)
    wrong = table.duck.rows(
        f"SELECT w, place FROM pairs WHERE NOT (w BETWEEN {float(_FLOAT32.tiny)!r}::DOUBLE AND "
        f"{largest!r}::DOUBLE) ORDER BY place LIMIT 1"
    )
    if wrong:
        raise GraphError(
            f"relation {one.key}: edge_weight: {wrong[0][0]} at edge {wrong[0][1]}; "
            "weights are positive, finite and such that float32 holds their sum"
        )


def _complete_report(found: Tables, graph: Graph, reverses: Sequence[str]) -> None:
    """Adds what is known of the whole graph to the report of its tables."""
    for table in found.lists:
        found.report.notes += _edge_notes(table, graph)
    found.report.notes += reverses
    for one in (one for table in found.lists for one in table.relations):
        if one.features.fates:
            found.report.relations[one.key] = one.features.fates
    joined = {kind: np.zeros(one.num_nodes, np.bool_) for kind, one in graph.nodes.items()}
    for relation in graph.relations.values():
        joined[relation.target] |= np.diff(relation.indptr) > 0
        for start in range(0, len(relation.indices), BLOCK):  # a store's are on disk
            joined[relation.source][relation.indices[start : start + BLOCK]] = True
    for kind, known in reversed(joined.items()):
        say_isolated(found.report, kind, int((~known).sum()), len(known))


def _edge_notes(table: EdgeList, graph: Graph) -> list[str]:
    """Returns lines about the relations of a list of edges."""
    notes = table.take_notes()
    if table.options.relation is not None:
        listed = ", ".join(one.name for one in table.relations)
        count = counted(len(table.relations), "relation")
        notes.append(f"edges: {table.options.relation!r} names {count}: {listed}")
    for one in table.relations:
        source, target = one.types
        found = graph.relations.get((source, one.name, target))
        if found is None:  # another one read backwards
            continue
        head = f"edges {one.name}:"
        notes.append(
            f"{head} {counted(found.num_edges, 'edge')} {source} → {target} ({_how(table, one)})"
        )
        notes += [f"{head} {line}" for line in one.features.notes]
        if found.self_loops_removed:
            notes.append(f"{head} {counted(found.self_loops_removed, 'self-loop')} left out")
        if found.undirected:
            notes.append(f"{head} each is listed in both directions: undirected")
            continue
        repeated = one.rows - found.self_loops_removed - found.num_edges
        if repeated:
            merged = "merged" if table.weight is None else "weights added"
            notes.append(f"{head} {counted(repeated, 'repeated row')}: {merged}")
    return notes


def _how(table: EdgeList, one: FoundRelation) -> str:
    if set(one.how) == {"given"}:
        return "given"
    parts = zip(table.columns, one.how, strict=True)
    return "guessed: " + "; ".join(f"{column!r}: {how}" for column, how in parts)


# Opening


def open_prepared(path: Path) -> Graph:
    """Opens a store, with what turned the columns of tables into its features.

    Several parts are joined, in the order of the graph that was divided. The structure is scanned.

    Raises:
        StoreError: it is damaged, or in parts that do not fit in memory.
    """
    require_room(path)
    graph = Graph.open(path)
    nodes = {
        name: replace(one, preparation=read_preparation(path / nodes_name(number)))
        for number, (name, one) in enumerate(graph.nodes.items())
    }
    relations = {
        key: replace(one, preparation=read_preparation(path / edges_name(number)))
        for number, (key, one) in enumerate(graph.relations.items())
    }
    found = replace(graph, nodes=nodes, relations=relations)
    found.check()
    return found


def require_room(path: Path) -> None:
    """Refuses to join a store in several parts that does not fit in memory.

    Raises:
        StoreError: it does not; the message names the store that was divided.
    """
    import torch

    from graphcl.devices import available_memory_bytes

    header = read_store(path)
    if len(header) == 1:
        return
    size = sum(one.stat().st_size for one in path.glob("part-*/**/*.npy"))
    free = available_memory_bytes(torch.device("cpu"))
    if JOINING * size > free:
        store = header.source.store or "STORE"
        raise StoreError(
            f"{path}: a store in parts of {size / 1e9:,.1f} GB, which train, embed and check take; "
            f"here it must fit in memory, of which {free / 1e9:,.1f} GB are free: give the store "
            f"that was divided, {store}"
        )
