"""Divides a store into parts: orders its nodes, and writes the rows of each part.

Memory does not grow with the graph, but for files that the kernel can take out of memory at any
time: the arrays of source and parts, which are mapped, and two unnamed temporary files beside the
parts, of 4 bytes per node each (the second of 8 from 2^31 nodes on). The source is read in blocks
of rows, once for its edges and once for its features, and `PASSES` times more for the order
``neighbours``. What is held beside the maps is a few blocks of `BLOCK_BYTES`, or one row if that is
larger, and a few numbers per part.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import StoreError, require
from graphcl.store.columns import Names, ScaledFeatures
from graphcl.store.moving import move_edges, move_ragged, move_rows
from graphcl.store.ordering import Numbering, order_nodes
from graphcl.store.parts import MANIFEST, MARK, MOST_PARTS, NOTHING, ORDERS, Source, part_name
from graphcl.store.reader import (
    FORMAT,
    MASKS,
    PART,
    check_structure,
    open_store,
    read_store_header,
)
from graphcl.store.writer import StoreWriter

Array = npt.NDArray[Any]
OnStep = Callable[[str], None]


def write_parts(
    folder: Path,
    store: Path,
    *,
    parts: int,
    order: str,
    source: Source = NOTHING,
    on_step: OnStep = lambda _: None,
) -> None:
    """Writes the parts of a store, and `parts.json` last, into a folder that the caller stages.

    Args:
        folder: a folder without parts.
        store: the store to divide; it is not changed.
        parts: how many.
        order: ``neighbours`` brings neighbours together; ``hash`` spreads nodes evenly; ``as-is``
            cuts the nodes into equal ranges and leaves their numbers.
        source: what is said of the store.
        on_step: called with the name of each step before it starts.

    Raises:
        StoreError: the store is missing or damaged, or has fewer nodes than parts.
    """
    header, fields = read_store_header(store), open_store(store)
    check_division(store, header.num_nodes, parts, order)
    on_step("checking the store")
    check_structure(str(store), fields)
    sums = {name: about["sha256"] for name, about in sorted(header.arrays.items())}
    build = build_id({"parts": parts, "order": order, "name": header.name, "arrays": sums})
    on_step(f"ordering the nodes: {order}")
    numbering = order_nodes(fields, parts, order, folder)
    folders = [folder / part_name(number) for number in range(parts)]
    cut = write_stores(folders, fields, numbering, build, on_step)
    ranges = zip(folders, numbering.starts, numbering.starts[1:], strict=False)
    listed = [
        {"start": int(start), "stop": int(stop), "sha256": part_digest(one)}
        for one, start, stop in ranges
    ]
    manifest = {
        MARK: FORMAT,
        "name": header.name,
        "build": build,
        "order": order,
        "num_nodes": header.num_nodes,
        "num_edges": len(fields["indices"]) // 2,
        "num_features": header.num_features,
        "cut_edges": cut,
        "source": source._asdict(),
        "parts": listed,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")


def check_division(store: Path, num_nodes: int, parts: int, order: str) -> None:
    """Refuses parts that a store cannot be divided into, before any work is done.

    Raises:
        StoreError: there are more parts than nodes.
    """
    most = f"in [1, {MOST_PARTS}]"
    require(1 <= parts <= MOST_PARTS, "partition", "--parts", most, parts)
    require(order in ORDERS, "partition", "--order", f"one of {', '.join(ORDERS)}", order)
    if parts > num_nodes:
        raise StoreError(f"{store}: has {num_nodes} nodes, too few for {parts} parts")


def write_stores(
    folders: Sequence[Path],
    fields: Mapping[str, Any],
    numbering: Numbering,
    build: str,
    on_step: OnStep,
) -> int:
    """Writes the rows of a store into one folder for each part; returns how many edges are cut.

    Args:
        folders: of the parts; they appear complete or not at all.
        fields: of the store; its structure has been checked.
        numbering: where each node goes.
        build: the id of the build.
        on_step: called with the name of each step before it starts.
    """
    with ExitStack() as open_parts:
        writers = [
            open_parts.enter_context(_part_writer(folder, number, build, numbering, fields))
            for number, folder in enumerate(folders)
        ]
        on_step("writing the edges")
        held = ("indptr", "indices", "edge_weight")
        edges: dict[str, Array] = {name: fields[name] for name in held if name in fields}
        kind = np.int32 if len(fields["indptr"]) <= 1 << 31 else np.int64
        cut = move_edges(writers, edges, numbering, numbering, kind) // 2
        on_step("writing features, labels and ids")
        write_rows(writers, fields, numbering)
        on_step("computing checksums")
    return cut


def part_digest(folder: Path) -> str:
    """Returns the checksum of the file that describes a part."""
    return hashlib.sha256((folder / PART).read_bytes()).hexdigest()


def build_id(about: Mapping[str, Any]) -> str:
    """Returns the id of a build from what decides it."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _part_writer(
    folder: Path, number: int, build: str, numbering: Numbering, fields: Mapping[str, Any]
) -> StoreWriter:
    start, stop = map(int, numbering.starts[number : number + 2])
    about = {"build": build, "part": number, "start": start, "stop": stop}
    writer = StoreWriter(folder, name=fields["name"], part=about)
    # Of a graph, not of a part: the first part keeps it.
    writer.self_loops_removed = 0 if number else fields["self_loops_removed"]
    writer.class_names = tuple(fields["class_names"])
    return writer


def write_rows(
    writers: Sequence[StoreWriter], fields: Mapping[str, Any], numbering: Numbering
) -> None:
    """Writes what belongs to nodes: features, labels, masks and ids."""
    x, ids = fields["x"], fields.get("node_ids")
    tables: dict[str, Array] = {name: fields[name] for name in ("y", *MASKS) if name in fields}
    if scipy.sparse.issparse(x):
        for writer in writers:
            writer.num_features = int(x.shape[1])
        kinds = {"x_indices": (x.indices, x.indices.dtype), "x_data": (x.data, np.float32)}
        move_ragged(writers, "x_indptr", kinds, x.indptr, numbering)
    elif isinstance(x, ScaledFeatures):
        tables["x"] = x.values
        if x.row_scale is not None:
            tables["x_row_scale"] = x.row_scale
        for writer in writers:
            writer.write("x_scale", x.scale)
    else:
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
