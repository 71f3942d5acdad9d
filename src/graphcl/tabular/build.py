"""Builds a graph in memory from tables, or a store, whole or in parts, larger than memory.

What grows with the edges is sorted and joined by DuckDB, on disk if need be, and written in batches
as it comes out. A store is what `load_tables` would read and `save` would write.
"""

import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, StoreError, counted
from graphcl.files.atomic import check_new_folder, whole_folder
from graphcl.graphs.collection import fingerprint
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Key, Relation
from graphcl.graphs.reverses import describe_reverse, find_reverse, without_reverses
from graphcl.graphs.structural import FEATURE_NAMES, structural_features
from graphcl.graphs.typed_partition import join_typed_parts
from graphcl.graphs.typed_store import HEADER, Header, is_typed_store, relation_of
from graphcl.store.parts import KIND, MANIFEST, Source, is_parts, read_parts
from graphcl.store.reader import file_digest, is_store, read_store_header
from graphcl.store.typed_parts import KIND as TYPED_KIND
from graphcl.store.typed_parts import MANIFEST as TYPED_MANIFEST
from graphcl.store.typed_parts import is_typed_parts, open_typed_part, read_typed_parts
from graphcl.store.writer import StoreWriter, write_names
from graphcl.tabular.edges import EdgeList, FoundRelation
from graphcl.tabular.entries import (
    BLOCK,
    ArrayFolder,
    SymmetricEntries,
    directed_entries,
    fill_csr,
    mapped_array,
    number_edges,
)
from graphcl.tabular.features import ArraySink, InMemory
from graphcl.tabular.nodes import NumberedNodes
from graphcl.tabular.options import TableOptions, holds_tables
from graphcl.tabular.preparation import ARRAYS, FILE, read_preparation, write_preparation
from graphcl.tabular.report import TableReport, say_isolated
from graphcl.tabular.tables import Tables, open_tables, table_name

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
    edges: Any,
    options: TableOptions,
    *,
    out: Path,
    overwrite: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> TableReport:
    """Writes a store from tables, array by array. The store appears complete or not at all.

    `on_step` is called with the name of each step before it starts.

    Raises:
        GraphError: tables are wrong; the message lists all that is.
        StoreError: something is at `out`.
    """
    if options.is_typed:
        return _build_typed(edges, options, out=out, overwrite=overwrite, on_step=on_step)
    name = table_name(edges)
    with (
        StoreWriter(out, name=name, overwrite=overwrite) as store,
        open_tables(edges, options, on_step=on_step) as tables,
    ):
        width = _width(tables.plain)
        on_step("sorting the edges")
        fill_structure(tables, store, index=np.int32)
        on_step("writing features, labels and ids")
        _write_nodes(store, tables.plain, width)
        store.self_loops_removed = tables.report.counts.self_loops
        return tables.report


def _write_nodes(store: StoreWriter, nodes: NumberedNodes, width: int) -> None:
    """Writes features, labels, split and ids of nodes into a store."""
    if width and nodes.stays_sparse:
        store.num_features = width
        nodes.fill_sparse_features(store)
    else:
        x = store.array("x", (nodes.num_nodes, max(1, width)), np.float32)
        nodes.fill_features(x)
        if width > nodes.num_features:
            files = {name: store.folder / f"{name}.npy" for name in ("indptr", "indices")}
            structure = {name: np.load(file, mmap_mode="r") for name, file in files.items()}
            _add_structural(nodes, structure, x)
        del x
        store.release("x")
    for name, values in {"y": nodes.labels(), **nodes.masks()}.items():
        if values is not None:
            store.write(name, values)
    ids = nodes.node_ids()
    if ids is not None:
        write_names(store, ids)
    store.class_names = nodes.report.class_names
    if nodes.report.preparation is not None:
        write_preparation(store.folder, nodes.report.preparation)


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


def _build_typed(
    edges: Any,
    options: TableOptions,
    *,
    out: Path,
    overwrite: bool,
    on_step: Callable[[str], None],
) -> TableReport:
    check_new_folder(out, "store", HEADER, StoreError, overwrite=overwrite)
    with whole_folder(out) as staging:
        with open_tables(edges, options, on_step=on_step) as tables:
            header = Header(tables.name)
            for kind, nodes in tables.nodes.items():
                on_step(f"writing the nodes of {kind}")
                folder = header.add_type(staging, kind, nodes.num_features > 0)
                with StoreWriter(folder, name=f"{tables.name} ({kind})") as store:
                    store.write("indptr", np.zeros(nodes.num_nodes + 1, np.int64))
                    store.write("indices", np.zeros(0, np.int32))
                    _write_nodes(store, nodes, nodes.num_features)
            said = _write_relations(staging, header, tables, options, on_step)
            header.write(staging)
        graph = Graph.open(staging)  # a store that cannot be opened must not appear
        _complete_report(tables, graph, said)
        return tables.report


def _write_relations(
    staging: Path,
    header: Header,
    tables: Tables,
    options: TableOptions,
    on_step: Callable[[str], None],
) -> list[str]:
    """Writes all relations but those that are others read backwards; returns what to say of it."""
    sizes = {kind: one.num_nodes for kind, one in tables.nodes.items()}
    kept, said = list[Relation](), list[str]()
    for table in tables.lists:
        for one in table.relations:
            on_step(f"sorting the edges of {one.name}")
            folder = _write_relation(staging, header, table, one, options, sizes[one.types[1]])
            written = relation_of(folder, header.relations[-1], sizes)
            other, same = find_reverse(written, kept)
            if other is not None:
                said.append(describe_reverse(written, other, same=same))
            if same:  # another one read backwards
                header.relations.pop()
                shutil.rmtree(folder)
            else:
                kept.append(written)
    return said


def _write_relation(
    staging: Path,
    header: Header,
    table: EdgeList,
    one: FoundRelation,
    options: TableOptions,
    targets: int,
) -> Path:
    """Writes the edges of a relation, sorted by targets and sources; returns their folder.

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
    arrays = ["indptr", "indices"] + (["edge_weight"] if weighted else [])
    arrays += (["edge_features"] if width else []) + (["edge_ids"] if undirected else [])
    folder = header.add_relation(staging, (source, one.name, target), arrays, one.rows - rows)
    into, features = ArrayFolder(folder), None
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
        number_edges(folder, indptr)
    if one.features.preparation is not None:
        write_preparation(folder, one.features.preparation)
    return folder


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


# Parts


def build_parts(
    edges: Any,
    options: TableOptions,
    *,
    out: Path,
    parts: int,
    order: str,
    overwrite: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> TableReport:
    """Writes a store in parts from tables; it appears complete or not at all.

    The whole store is built first, hidden beside the parts, and removed at the end. Returns the
    report of `build_store`.
    """
    _check_new_parts(out, options.is_typed, overwrite=overwrite)
    with whole_folder(out) as folder:
        whole = folder / "whole"
        report = build_store(edges, options, out=whole, on_step=on_step)
        stores = [one for one in (whole, *whole.iterdir()) if is_store(one)]
        if (nodes := sum(read_store_header(one).num_nodes for one in stores)) < parts:
            raise StoreError(f"build: {nodes} nodes are too few for {parts} parts")
        divide(whole, folder, parts=parts, order=order, on_step=on_step)
        shutil.rmtree(whole)
        return report


def partition_store(
    store: Path,
    *,
    out: Path,
    parts: int,
    order: str,
    overwrite: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> None:
    """Divides a store into parts, which appear complete or not at all; the store stays.

    `graphcl.store.partition` says how, and what memory it takes.

    Raises:
        StoreError: the store is missing or damaged, or `out` is taken.
    """
    _check_new_parts(out, is_typed_store(store), overwrite=overwrite)
    if is_parts(store) or is_typed_parts(store):
        raise StoreError(f"{store}: is in parts already; divide the store that they were made from")
    if store.is_file():
        edges, target = shlex.quote(str(store)), shlex.quote(str(out))
        built = f"graphcl build --edges {edges} --nodes FILE --parts {parts} --out {target}"
        raise StoreError(f"{store}: is no store; divide tables by: {built}")
    with whole_folder(out) as folder:
        how: dict[str, Any] = {"parts": parts, "order": order, "on_step": on_step}
        divide(store, folder, named=str(store), **how)


def _check_new_parts(out: Path, typed: bool, *, overwrite: bool) -> None:
    kind = (TYPED_KIND, TYPED_MANIFEST) if typed else (KIND, MANIFEST)
    check_new_folder(out, *kind, StoreError, overwrite=overwrite)


def divide(
    store: Path,
    folder: Path,
    *,
    parts: int,
    order: str,
    on_step: Callable[[str], None],
    named: str = "",
) -> None:
    """Writes the parts of a store, plain or typed, into an empty folder, and how it was made.

    `named` is where the store stays, if it does.
    """
    typed = is_typed_store(store)
    if typed:
        from graphcl.graphs.typed_partition import write_typed_parts as write
    else:
        from graphcl.store.partition import write_parts as write  # loops, which import torch

    beside: dict[str, str] = {}
    # Of a typed store, types and relations have preparations of their own.
    for own in [one.name for one in store.iterdir() if one.is_dir()] if typed else [""]:
        preparation = read_preparation(store / own)
        if preparation is not None:
            (folder / own).mkdir(exist_ok=True)
            write_preparation(folder / own, preparation)
            files = [folder / own / name for name in (FILE, ARRAYS)]
            found = [one for one in files if one.exists()]
            beside |= {str(one.relative_to(folder)): file_digest(one) for one in found}
    known = fingerprint((Graph.open(store),)) if typed or is_store(store) else ""
    source = Source(known, named, beside)
    write(folder, store, parts=parts, order=order, source=source, on_step=on_step)


def open_prepared(path: Path) -> Graph:
    """Maps a typed store, with what turned the columns of tables into its features.

    A store in one part is a store, too; several are joined, in the order of the graph that was
    divided.

    Raises:
        StoreError: it is damaged, or in parts that do not fit in memory.
    """
    graph = _whole(path) if is_typed_parts(path) else Graph.open(path)
    nodes = {
        name: replace(one, preparation=read_preparation(path / f"nodes-{number}"))
        for number, (name, one) in enumerate(graph.nodes.items())
    }
    relations = {
        key: replace(one, preparation=read_preparation(path / f"relation-{number}"))
        for number, (key, one) in enumerate(graph.relations.items())
    }
    return replace(graph, nodes=nodes, relations=relations)


def _whole(path: Path) -> Graph:
    require_room(path)
    for number in range(len(read_typed_parts(path))):
        open_typed_part(path, number).check()
    return join_typed_parts(path, restored=True)


def require_room(path: Path) -> None:
    """Refuses to join a store in several parts that does not fit in memory.

    Raises:
        StoreError: it does not; the message names the store that was divided.
    """
    import torch

    from graphcl.devices import available_memory_bytes

    parts = read_typed_parts(path) if is_typed_parts(path) else read_parts(path)
    size = sum(one.stat().st_size for one in path.glob("part-*/**/*.npy"))
    free = available_memory_bytes(torch.device("cpu"))
    if len(parts) > 1 and JOINING * size > free:
        store = parts.source.store or "STORE"
        raise StoreError(
            f"{path}: a store in parts of {size / 1e9:,.1f} GB, which train, embed and check take; "
            f"here it must fit in memory, of which {free / 1e9:,.1f} GB are free: give the store "
            f"that was divided, {store}"
        )
