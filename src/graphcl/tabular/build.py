"""Builds a `Graph` in memory from tables, or a store, whole or in parts, larger than memory."""

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.errors import GraphError, StoreError
from graphcl.files.atomic import check_new_folder, whole_folder
from graphcl.graphs.collection import fingerprint
from graphcl.graphs.graph import Graph
from graphcl.graphs.structural import FEATURE_NAMES, structural_features
from graphcl.graphs.typed_store import is_typed_store
from graphcl.store.columns import Names
from graphcl.store.parts import KIND, MANIFEST, Source, is_parts
from graphcl.store.reader import file_digest, is_store, read_store_header
from graphcl.store.typed_parts import KIND as TYPED_KIND
from graphcl.store.typed_parts import MANIFEST as TYPED_MANIFEST
from graphcl.store.typed_parts import is_typed_parts
from graphcl.store.writer import StoreWriter, write_names
from graphcl.tabular.duck import is_query
from graphcl.tabular.options import TableOptions, TableReport, holds_tables
from graphcl.tabular.preparation import ARRAYS, FILE, read_preparation, write_preparation
from graphcl.tabular.tables import InMemory, Tables, open_tables


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
    if found.is_typed:
        from graphcl.tabular.typed import load_typed

        return load_typed(source, found)[0]
    if source is None:
        raise GraphError("read_tables: edges are missing")
    return load_tables(source, found)[0]


def load_tables(edges: Any, options: TableOptions) -> tuple[Graph, TableReport]:
    """Reads tables into a graph in memory; also returns a report on what was found in them."""
    with open_tables(edges, options) as tables:
        arrays = InMemory()
        tables.fill_structure(arrays)
        fields: dict[str, Any] = dict(arrays.arrays)
        width = _width(tables, options)
        if stays_sparse(tables, options):
            sparse = InMemory()
            tables.fill_sparse_features(sparse)
            parts = tuple(sparse.arrays[name] for name in ("x_data", "x_indices", "x_indptr"))
            fields["x"] = scipy.sparse.csr_array(parts, shape=(tables.num_nodes, width))
        else:
            fields["x"] = np.zeros((tables.num_nodes, width), dtype=np.float32)
            _fill_features(tables, options, fields, fields["x"])
        fields |= {"y": tables.labels(), **tables.masks()}
        ids = tables.node_ids()
        if ids is not None:
            fields["node_ids"] = ids_of_column(ids)
        report = tables.report
        fields |= {"class_names": report.class_names, "preparation": report.preparation}
        loops = report.counts.self_loops
        return Graph.from_csr(name=table_name(edges), self_loops_removed=loops, **fields), report


def check_tables(edges: str, options: TableOptions) -> tuple[dict[str, int], TableReport]:
    """Reads tables and makes nothing of them; returns counts, and what would become of them.

    Raises:
        GraphError: what `load_tables` would raise.
    """
    with open_tables(edges, options) as tables:
        width = _width(tables, options)
        tables.fill_structure(InMemory())
        counts = {"nodes": tables.num_nodes, "edges": tables.report.counts.edges}
        return counts | {"features": width, "classes": tables.num_classes}, tables.report


def build_store(
    edges: str,
    options: TableOptions,
    *,
    out: Path,
    overwrite: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> TableReport:
    """Writes a store from tables, array by array. The store appears complete or not at all.

    `on_step` is called with the name of each step before it starts.
    """
    store = StoreWriter(out, name=table_name(edges), overwrite=overwrite)
    with store, open_tables(edges, options, on_step=on_step) as tables:
        width = _width(tables, options)
        on_step("sorting the edges")
        tables.fill_structure(store, index=np.int32)
        on_step("writing features, labels and ids")
        if stays_sparse(tables, options):
            store.num_features = width
            tables.fill_sparse_features(store)
        else:
            structure = {
                name: np.load(store.folder / f"{name}.npy", mmap_mode="r")
                for name in ("indptr", "indices")
            }
            x = store.array("x", (tables.num_nodes, width), np.float32)
            _fill_features(tables, options, structure, x)
            store.release("x")
        for name, values in {"y": tables.labels(), **tables.masks()}.items():
            if values is not None:
                store.write(name, values)
        ids = tables.node_ids()
        if ids is not None:
            write_names(store, ids_of_column(ids))
        store.self_loops_removed = tables.report.counts.self_loops
        store.class_names = tables.report.class_names
        if tables.report.preparation is not None:
            write_preparation(store.folder, tables.report.preparation)
        return tables.report


def build_parts(
    edges: Any,
    options: TableOptions,
    *,
    out: Path,
    parts: int,
    order: str,
    overwrite: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> Any:
    """Writes a store in parts from tables, plain or typed; it appears complete or not at all.

    The whole store is built first, hidden beside the parts, and removed at the end. Returns the
    report of `build_store` or `build_typed_store`.
    """
    _check_new_parts(out, options.is_typed, overwrite=overwrite)
    with whole_folder(out) as folder:
        whole, build = folder / "whole", build_store
        if options.is_typed:
            from graphcl.tabular.typed_build import build_typed_store as build  # type: ignore[assignment]
        report = build(edges, options, out=whole, on_step=on_step)
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


def table_name(edges: Any) -> str:
    """Returns the name of a graph from these edges: the file's name without its suffixes."""
    if not isinstance(edges, str):
        return "graph"
    return "query" if is_query(edges) else Path(edges.split(":")[0]).name.split(".")[0] or "graph"


def _structural(options: TableOptions) -> bool:
    return options.features in ("structural", "both")


def stays_sparse(tables: Tables, options: TableOptions) -> bool:
    """Returns whether features stay sparse: those of columns alone, if they are mostly zeros."""
    return options.features == "columns" and tables.is_sparse


def _width(tables: Tables, options: TableOptions) -> int:
    width = tables.num_features + (len(FEATURE_NAMES) if _structural(options) else 0)
    if width == 0:
        what = "no node table" if options.nodes is None else "no column that can be a feature"
        raise GraphError(
            f"the graph has no features ({what}): pass --nodes with numeric columns, or "
            "--features structural to compute features from the edges alone"
        )
    return width


def _fill_features(tables: Tables, options: TableOptions, structure: Any, x: Any) -> None:
    if tables.num_features:
        tables.fill_features(x)
    if _structural(options):
        x[:, tables.num_features :] = structural_features(structure["indptr"], structure["indices"])
        tables.report.structural_features = list(FEATURE_NAMES)
        tables.report.notes.append(f"features from the edges alone: {'; '.join(FEATURE_NAMES)}")


def ids_of_column(ids: Any) -> Any:
    """Converts an Arrow column of ids to an integer array, or to `Names` without a Python loop."""
    import pyarrow

    if not pyarrow.types.is_string(ids.type) and not pyarrow.types.is_large_string(ids.type):
        return ids.to_numpy()
    column = ids.cast(pyarrow.large_string()).combine_chunks()
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.chunk(0)
    # `Names` has Arrow's own layout, so the two buffers are taken as they are. A column can be a
    # slice of a longer one: `column.offset` says where it begins.
    _, offsets, text = column.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    letters = np.frombuffer(text, dtype=np.uint8) if text is not None else np.zeros(0, np.uint8)
    return Names(starts - starts[0], letters[starts[0] : starts[-1]].copy())
