"""Divides a store into parts: orders its nodes, and writes the rows of each part.

Memory does not grow with the graph, but for files that the kernel can take out of memory at any
time: the arrays of source and parts, which are mapped, and unnamed temporary files beside the
parts, of 8 bytes per node (12 from 2^31 nodes on), and of 8 more for the nodes that send in a
relation while its edges are written by source. The source is read in blocks of rows, once for its
edges and once for its features, and `PASSES` times more for the order ``neighbours``. That order
needs the edges of several relations, or of directed ones, as those of one plain graph: in another
temporary file, of 4 bytes for each direction of an edge, or 8 from 2^31 nodes on. What is held
beside the maps is a few blocks of `BLOCK_BYTES`, or one row if that is larger, and a few numbers
per part.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Array, blocks
from graphcl.errors import StoreError, demand, option, require
from graphcl.files.arrays import scratch_array
from graphcl.store.columns import Names
from graphcl.store.header import MASKS, MOST_PARTS, ORDERS, Key, Store, read_store
from graphcl.store.moving import (
    BLOCK_BYTES,
    Numbering,
    entries_of,
    move_edges,
    move_ragged,
    move_reversed,
    move_rows,
    order_types,
    row_blocks,
    take_places,
)
from graphcl.store.reader import Edges, open_part
from graphcl.store.writer import ArrayWriter, StoreWriter, build_id

OnStep = Callable[[str], None]


def divide(
    writer: StoreWriter,
    store: Path,
    *,
    parts: int,
    order: str,
    on_step: OnStep = lambda _: None,
) -> None:
    """Writes the parts of a store.

    Args:
        writer: an open one, for as many parts; nothing was written yet.
        store: the store to divide, which is in one part; it is not changed.
        parts: how many.
        order: ``neighbours`` brings neighbours together; ``hash`` spreads nodes evenly; ``as-is``
            cuts the nodes of each type into equal ranges and leaves their numbers.
        on_step: called with the name of each step before it starts.

    Raises:
        StoreError: the store is missing or damaged, or has fewer nodes than parts.
    """
    header = read_store(store)
    check_division(header, parts, order)
    on_step("checking the store")
    whole = open_part(header, 0)
    whole.check()
    writer.name, writer.order = header.name, order
    writer.build = build_id({"parts": parts, "order": order, "source": header.build})
    on_step(f"ordering the nodes: {order}")
    sizes = {name: one.num_nodes for name, one in header.types.items()}
    edges = {key: whole.edges[key, False] for key in header.relations}
    numbered = order_types(
        list(sizes.values()),
        lambda: flat_edges(header, edges, writer.folder),
        parts,
        order,
        writer.folder,
    )
    numberings = dict(zip(sizes, numbered, strict=True))
    of_nodes = {}
    for name, one in header.types.items():
        starts = numberings[name].starts.tolist()
        of_nodes[name] = writer.add_type(name, starts, one.class_names)
    for key, arrays in edges.items():
        on_step(_step("writing the edges", key[1], header.relations))
        _write_relation(writer, header, key, arrays, numberings)
    for name, own in whole.nodes.items():
        on_step(_step("writing features, labels and ids", name, header.types))
        write_rows(of_nodes[name], own.fields, numberings[name])
    on_step("computing checksums")


def check_division(store: Store, parts: int, order: str) -> None:
    """Refuses parts that a store cannot be divided into, before any work is done.

    Raises:
        StoreError: there are more parts than nodes, or it is divided.
    """
    require(1 <= parts <= MOST_PARTS, "build", option("parts"), f"in [1, {MOST_PARTS}]", parts)
    require(order in ORDERS, "build", option("order"), f"one of {', '.join(ORDERS)}", order)
    demand(
        len(store) <= 1,
        f"{store.path}: is in parts already; divide the store that they were made from",
        StoreError,
    )
    demand(
        parts <= store.num_nodes,
        f"{store.path}: has {store.num_nodes} nodes, too few for {parts} parts",
        StoreError,
    )


def _step(what: str, name: str, several: Mapping[Any, Any]) -> str:
    return f"{what} of {name}" if len(several) > 1 else what


def flat_edges(store: Store, edges: Mapping[Key, Edges], folder: Path) -> Mapping[str, Array]:
    """Returns `indptr` and `indices` of all relations in both directions, in unnamed files.

    Nodes are numbered type after type. Edges with the same ends are there several times. A graph
    with one type and one undirected relation has them already.
    """
    sizes = {name: one.num_nodes for name, one in store.types.items()}
    relations = store.relations.values()
    if len(sizes) == 1 and len(edges) == 1 and next(iter(relations)).undirected:
        return next(iter(edges.values()))
    firsts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    total = sum(sizes.values())
    indptr = scratch_array((total + 1,), np.int64, folder)
    for one in relations:
        arrays, (source, _, target) = edges[one.key], one.key
        first = firsts[target] + 1
        for rows in blocks(sizes[target], BLOCK_BYTES // 8):
            counts = np.diff(arrays["indptr"][rows.start : rows.stop + 1])
            indptr[first + rows.start : first + rows.stop] += counts
        for some in blocks(0 if one.undirected else len(arrays["indices"]), BLOCK_BYTES // 8):
            found, counts = np.unique(arrays["indices"][some], return_counts=True)
            indptr[firsts[source] + 1 + found] += counts
    np.cumsum(indptr, out=indptr)
    free = scratch_array((total,), np.int64, folder)
    free[:] = indptr[:-1]
    kind: Any = np.int32 if total < 1 << 31 else np.int64
    indices = scratch_array((int(indptr[-1]),), kind, folder)
    for one in relations:
        arrays, (source, _, target) = edges[one.key], one.key
        for rows in row_blocks(arrays["indptr"]):
            local, entries = entries_of(arrays["indptr"], rows)
            sources = firsts[source] + np.asarray(arrays["indices"][entries])
            first = firsts[target] + rows.start
            targets = first + np.repeat(np.arange(len(local) - 1), np.diff(local))
            pairs = [(targets, sources)] + ([] if one.undirected else [(sources, targets)])
            for receivers, senders in pairs:
                order, places = take_places(free, receivers)
                indices[places] = senders[order]
    return {"indptr": indptr, "indices": indices}


def _write_relation(
    writer: StoreWriter,
    store: Store,
    key: Key,
    arrays: Edges,
    numberings: Mapping[str, Numbering],
) -> None:
    """Writes the edges of a relation in its directions."""
    targets, sources = numberings[key[2]], numberings[key[0]]
    about = store.relations[key]
    there = writer.add_relation(
        key, undirected=about.undirected, self_loops_removed=about.self_loops_removed
    )
    cut = move_edges(there, arrays, targets, sources, arrays["indices"].dtype)
    writer.set_cut(key, cut // 2 if about.undirected else cut)
    if about.undirected:
        return
    moved = [{name: one.read(name) for name in arrays} for one in there]
    move_reversed(writer.add_reverse(key), moved, targets, sources, writer.folder)


def write_rows(
    writers: Sequence[ArrayWriter], fields: Mapping[str, Any], numbering: Numbering
) -> None:
    """Writes what belongs to nodes: features, labels, masks and ids."""
    x: Any = fields.get("x")
    ids = fields.get("node_ids")
    tables: dict[str, Array] = {name: fields[name] for name in ("y", *MASKS) if name in fields}
    if scipy.sparse.issparse(x):
        for writer in writers:
            writer.num_features = int(x.shape[1])
        kinds = {"x_indices": (x.indices, x.indices.dtype), "x_data": (x.data, np.float32)}
        move_ragged(writers, "x_indptr", kinds, x.indptr, numbering)
    elif x is not None:
        tables["x"] = x
    if isinstance(ids, Names):
        text = {"node_ids": (ids.text, np.uint8)}
        move_ragged(writers, "node_id_offsets", text, ids.offsets, numbering)
    elif ids is not None:
        tables["node_ids"] = ids
    if numbering.numbers is not None:  # nodes must be found by the numbers that they had
        tables["rows"] = np.empty(0, dtype=np.int64)
    for name, table in tables.items():
        move_rows(writers, name, table, numbering)
