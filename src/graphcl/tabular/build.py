"""Builds a graph in memory from tables, or a store, whole or in parts, larger than memory.

What grows with the edges is sorted and joined by DuckDB, on disk if need be, and written in batches
as it comes out. A store is what `load_tables` would read and `save` would write.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import StoreError, counted, demand, option
from graphcl.files.remote import local, named
from graphcl.graphs.collection import fingerprint
from graphcl.graphs.conversion import describe_reverse, find_reverse
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import EDGE, NODE, Key, Relation
from graphcl.graphs.structural import FEATURE_NAMES, structural_features
from graphcl.store.header import Source, edges_name, nodes_name, read_store
from graphcl.store.reader import EDGE_DTYPES
from graphcl.store.writer import ArrayWriter, StoreWriter, write_nodes
from graphcl.tabular.edges import EdgeList, FoundRelation
from graphcl.tabular.entries import (
    BLOCK,
    directed_entries,
    fill_csr,
    symmetric_entries,
)
from graphcl.tabular.features import InMemory
from graphcl.tabular.options import FILES, TableOptions, holds_tables
from graphcl.tabular.originals import read_cells
from graphcl.tabular.preparation import read_preparation, write_preparation
from graphcl.tabular.report import EdgeCounts, TableReport, Usual, head_of, said_of
from graphcl.tabular.tables import Tables, open_tables
from graphcl.tabular.times import ages

MANY_ISOLATED = 0.1  # a larger share of nodes without an edge is a warning
JOINING = 3  # times the size of its files: what a graph in parts takes while it is joined


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
    source = str(local(edges)) if isinstance(edges, Path) else local(edges)
    lists = {"edges": source} if holds_tables(source) else {}
    given = {"nodes": nodes, **options}
    given |= {name: local(given[name]) for name in FILES if name in given}
    found = TableOptions.named("read_tables", given | lists)
    demand(lists or source is not None or found.is_typed, "read_tables: edges are missing")
    return load_tables(None if lists else source, found)[0]


def load_tables(edges: Any, options: TableOptions) -> tuple[Graph, TableReport]:
    """Reads tables into a graph in memory; also returns a report on what was found in them.

    Args:
        edges: a list of edges; of a typed graph, one beside those of `options.edges`, or None.
        options: how to read the tables.

    Raises:
        GraphError: tables are wrong; the message lists all that is.
    """
    with open_tables(edges, options) as tables:
        return fill_graph(tables, _further(tables)), tables.report


def load_met(edges: Any, options: TableOptions) -> tuple[Graph, dict[str, Any]]:
    """Returns what `load_tables` does, and by type what `Tables.met` does."""
    with open_tables(edges, options) as tables:
        graph = fill_graph(tables, _further(tables))
        return graph, {kind: tables.met(kind) for kind in graph.nodes}


def check_tables(edges: str, options: TableOptions) -> tuple[dict[str, int], TableReport]:
    """Reads tables and makes nothing of them; returns counts, and what would become of them.

    Raises:
        GraphError: what `load_tables` would raise.
    """
    with open_tables(edges, options) as tables:
        width = tables.plain.num_features + _further(tables)
        _fill_relations(tables)
        counts = {"nodes": tables.plain.num_nodes, "edges": tables.report.counts.edges}
        return counts | {"features": width, "classes": tables.plain.num_classes}, tables.report


def fill_graph(
    tables: Tables,
    further: int = 0,
    store: StoreWriter | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Graph:
    """Fills a graph from tables: in memory, or as a store, array by array.

    Args:
        tables: checked and numbered.
        further: how many features of a plain graph are computed from its edges.
        store: an open one; then the graph that is returned has the sizes of its types alone.
        on_step: called with the name of each step before it starts.
    """
    relations = _fill_relations(tables, store, on_step)
    nodes = {}
    for kind, own in tables.nodes.items():
        name = kind or NODE
        on_step(f"writing the nodes of {kind}" if kind else "writing features, labels and ids")
        into: Any = InMemory()
        if store is not None:
            (into,) = store.add_type(name, [0, own.num_nodes], own.report.class_names)
        x: Any = own.fill(into, further)
        if further:
            edges = relations[EDGE]
            x[:, own.num_features :] = structural_features(edges.indptr, edges.indices)
            own.report.notes.append(
                Usual(f"features from the edges alone: {'; '.join(FEATURE_NAMES)}")
            )
        if store is None:
            cells = read_cells(own)
            nodes[name] = Nodes(name, own.num_nodes, into.x, **own.fields(), cells=cells)
            continue
        del x
        into.release("x")
        write_nodes(into, own.fields())
        nodes[name] = Nodes(name, own.num_nodes)
        if own.report.preparation is not None:
            write_preparation(store.beside(nodes_name(len(nodes) - 1)), own.report.preparation)
    return Graph(nodes, relations, tables.name)


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
            with open_tables(graph, options, on_step=on_step) as tables:
                store.name = tables.name
                fill_graph(tables, _further(tables), store, on_step)
                return tables.report
        report, hidden = TableReport(), store.folder / "whole"
        if options is not None or isinstance(graph, Graph):
            report = build_store(graph, options, out=hidden, on_step=on_step)
            if (nodes := read_store(hidden).num_nodes) < parts:
                raise StoreError(f"build: {nodes} nodes are too few for {parts} parts")
            _divide(store, hidden, parts, order, on_step)
            shutil.rmtree(hidden)
        else:
            _divide(store, Path(graph), parts, order, on_step, stays=named(str(graph)))
        return report


def _divide(
    store: StoreWriter,
    whole: Path,
    parts: int,
    order: str,
    on_step: Callable[[str], None],
    *,
    stays: str = "",
) -> None:
    """Writes the parts of a store, and what prepared its features.

    `stays` is where the store stays, if it does.
    """
    from graphcl.store.partition import divide  # loops, which import torch

    divide(store, whole, parts=parts, order=order, on_step=on_step)
    store.source = Source(fingerprint((Graph.open(whole),)), stays)
    for file in map(Path, read_store(whole).source.beside):
        shutil.copyfile(whole / file, store.beside(file.parent.name) / file.name)


def _further(tables: Tables) -> int:
    """Returns how many features are computed from edges; a plain graph needs some of any kind."""
    if tables.typed:
        return 0
    nodes, how = tables.plain, tables.plain.options.features
    if tables.lists[0].age is not None:  # edges have a feature; a type without any is filled in
        demand(
            how != "both",
            f"{option('features', 'both')}: not with the ages of edges; leave these out: "
            f"{option('age', False)}",
        )
        return 0
    further = len(FEATURE_NAMES) if how in ("structural", "both") else 0
    what = "no node table" if nodes.options.nodes is None else "no column that can be a feature"
    demand(
        nodes.num_features + further,
        f"the graph has no features ({what}): pass {option('nodes')} with numeric columns, or "
        f"{option('features', 'structural')} to compute features from the edges alone",
    )
    return further


def _fill_relations(
    tables: Tables,
    store: StoreWriter | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> dict[Key, Relation]:
    """Fills all relations but those that are others read backwards, and reports on them."""
    kept, said = dict[Key, Relation](), list[str]()
    for table in tables.lists:
        for one in table.relations:
            on_step(f"sorting the edges of {one.name}" if one.name else "sorting the edges")
            filled = _fill_relation(tables, table, one, store)
            other, same = find_reverse(filled, kept.values())
            if other is not None:
                said.append(describe_reverse(filled, other, same=same))
            if same:  # another one read backwards
                if store is not None:
                    store.drop_relation(filled.key)
                continue
            if store is not None and filled.preparation is not None:
                write_preparation(store.beside(edges_name(len(kept))), filled.preparation)
            kept[filled.key] = filled
    for table in tables.lists:
        tables.report.notes += _edge_notes(table, kept, tables.report)
    tables.report.notes += said
    _say_isolated(tables, kept.values())
    return kept


def _fill_relation(
    tables: Tables, table: EdgeList, one: FoundRelation, store: StoreWriter | None
) -> Relation:
    """Fills the edges of a relation, sorted by targets and sources.

    An edge from a node to itself is left out if both ends are of one type. The relation of a plain
    graph is undirected; another one is if each edge is listed in both directions, with one weight.
    """
    typed, duck, weighted = tables.typed, table.duck, table.weight is not None
    source, target = one.types
    if len(table.relations) > 1 or any(tables.nodes[end].report.added_nodes for end in one.types):
        table.create_pairs(one)  # else they are there
    where = "u <> v" if source == target else "true"
    rows = duck.count(f"pairs WHERE {where}")
    width, loops, time = one.features.width, one.rows - rows, one.features.age
    age = None if time is None else partial(ages, time)
    counts = tables.report.counts
    found = EdgeCounts() if typed else counts
    both = partial(symmetric_entries, duck, found, weighted=weighted, age=age)
    undirected = not typed
    if source == target and typed and not table.options.directed and rows and not width:
        for _ in both():
            pass
        undirected = found.symmetric
    if not typed:
        counts.rows, counts.dangling, counts.self_loops = one.rows, table.dangling, loops
    into: Any = InMemory()
    if store is not None:
        (into,) = store.add_relation(one.key, undirected=undirected, self_loops_removed=loops)
    features = None
    if one.features.features is not None:
        beside = ArrayWriter(duck.folder)
        features = beside.array("edge_features", (one.rows, width), np.float32)
        one.features.features.fill(features)

    def adjust(weight: npt.NDArray[np.float32]) -> None:
        if undirected and found.symmetric:
            weight *= np.float32(0.5)  # exact; both directions were added up
        demand(
            np.isfinite(weight).all() and (weight > 0).all(),
            f"{table.source.name}: the weights of an edge add up to a number outside the range of "
            "float32; divide them by a constant (only their ratios matter)",
        )

    fill_csr(
        into,
        both()
        if undirected
        else directed_entries(duck, where, weighted=weighted, features=features, age=age),
        rows=tables.nodes[target].num_nodes,
        most=2 * rows if undirected else rows,
        dtype=np.int32 if store is not None and not typed and age is None else np.int64,
        weighted=weighted,
        width=width + (age is not None),
        adjust=adjust,
    )
    arrays = {name: into.read(name) for name in EDGE_DTYPES if into.shape(name)}
    return Relation(
        *one.key,
        **arrays,
        undirected=undirected,
        self_loops_removed=loops,
        preparation=one.features.preparation,
    )


# What is said of edges


def _say_isolated(tables: Tables, relations: Iterable[Relation]) -> None:
    """Reports how many nodes have no edge: as a warning, and first, if they are many."""
    joined = {kind: np.zeros(one.num_nodes, np.bool_) for kind, one in tables.nodes.items()}
    for relation in relations:
        source, target = (relation.source, relation.target) if tables.typed else ("", "")
        joined[target] |= np.diff(relation.indptr) > 0
        for start in range(0, len(relation.indices), BLOCK):  # a store's are on disk
            joined[source][relation.indices[start : start + BLOCK]] = True
    for kind, known in reversed(joined.items()):
        count, report = int((~known).sum()), tables.report
        if count > MANY_ISOLATED * len(known):
            of, have = f" of {kind}" if kind else "", "has" if count == 1 else "have"
            said = f"{count:,} of {counted(len(known), 'node')}{of} {have} no edge"
            report.first.insert(0, f"warning: {said}")
        elif count:
            said = f"{counted(count, 'node has', 'nodes have')} no edge"
            report.notes.append(f"{head_of('nodes', kind)} {said}")


def _edge_notes(table: EdgeList, kept: Mapping[Key, Relation], report: TableReport) -> list[str]:
    """Returns lines about the relations of a list of edges, and reports on their columns."""
    merged, own = "merged" if table.weight is None else "weights added", table.options.relation
    notes = said_of(head_of("edges", table.name if own is None else ""), table.notes)
    if own is not None:
        listed = ", ".join(one.name for one in table.relations)
        notes.append(
            Usual(f"edges: {own!r} names {counted(len(table.relations), 'relation')}: {listed}")
        )
    for one in table.relations:
        found, head, counts = kept.get(one.key), head_of("edges", one.name), report.counts
        if found is None:  # another one read backwards
            continue
        repeated = counts.repeated
        if one.name:
            repeated = one.rows - found.self_loops_removed - found.num_edges
            parts = zip(table.columns, one.how, strict=True)
            how = "guessed: " + "; ".join(f"{column!r}: {how}" for column, how in parts)
            how = "given" if set(one.how) == {"given"} else how
            edges = counted(found.num_edges, "edge")
            notes.append(Usual(f"{head} {edges} {found.source} → {found.target} ({how})"))
            notes += said_of(head, one.features.notes)
            if one.features.fates:
                report.relations[":".join(one.key)] = one.features.fates
        if found.self_loops_removed:
            notes.append(f"{head} {counted(found.self_loops_removed, 'self-loop')} left out")
        if found.undirected and one.name:
            notes.append(f"{head} each is listed in both directions: undirected")
            continue
        if counts.symmetric:
            notes.append(Usual(f"{head} each is listed in both directions"))
        elif counts.both_directions:
            both = counted(counts.both_directions, "edge is", "edges are")
            notes.append(f"{head} {both} listed in both directions: {merged}")
        if repeated:
            notes.append(f"{head} {counted(repeated, 'repeated row')}: {merged}")
    return notes


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
