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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import StoreError, require
from graphcl.store.columns import Names, ScaledFeatures
from graphcl.store.ordering import (
    BLOCK_BYTES,
    Numbering,
    entries_of,
    order_nodes,
    row_blocks,
    slices,
)
from graphcl.store.parts import MANIFEST, MARK, MOST_PARTS, ORDERS, part_name
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
    folder: Path, store: Path, *, parts: int, order: str, on_step: OnStep = lambda _: None
) -> None:
    """Writes the parts of a store, and `parts.json` last, into a folder that the caller stages.

    Args:
        folder: an empty folder.
        store: the store to divide; it is not changed.
        parts: how many.
        order: ``neighbours`` brings neighbours together; ``hash`` spreads nodes evenly; ``as-is``
            cuts the nodes into equal ranges and leaves their numbers.
        on_step: called with the name of each step before it starts.

    Raises:
        StoreError: the store is missing or damaged, or has fewer nodes than parts.
    """
    header, fields = read_store_header(store), open_store(store)
    most = f"in [1, {MOST_PARTS}]"
    require(1 <= parts <= MOST_PARTS, "partition", "--parts", most, parts)
    require(order in ORDERS, "partition", "--order", f"one of {', '.join(ORDERS)}", order)
    if parts > header.num_nodes:
        raise StoreError(f"{store}: has {header.num_nodes} nodes, too few for {parts} parts")
    on_step("checking the store")
    check_structure(str(store), fields)
    source = {name: about["sha256"] for name, about in sorted(header.arrays.items())}
    build = _build_id({"parts": parts, "order": order, "name": header.name, "arrays": source})
    on_step(f"ordering the nodes: {order}")
    numbering = order_nodes(fields, parts, order, folder)
    with ExitStack() as open_parts:
        writers = [
            open_parts.enter_context(_part_writer(folder, number, build, numbering, fields))
            for number in range(parts)
        ]
        on_step("writing the edges")
        cut = _write_edges(writers, fields, numbering)
        on_step("writing features, labels and ids")
        _write_rows(writers, fields, numbering)
        on_step("computing checksums")
    listed = []
    for number in range(parts):
        digest = hashlib.sha256((folder / part_name(number) / PART).read_bytes()).hexdigest()
        start, stop = map(int, numbering.starts[number : number + 2])
        listed.append({"start": start, "stop": stop, "sha256": digest})
    manifest = {
        MARK: FORMAT,
        "name": header.name,
        "build": build,
        "order": order,
        "num_nodes": header.num_nodes,
        "num_edges": len(fields["indices"]) // 2,
        "num_features": header.num_features,
        "cut_edges": cut,
        "parts": listed,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")


def _build_id(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


def _part_writer(
    folder: Path, number: int, build: str, numbering: Numbering, fields: Mapping[str, Any]
) -> StoreWriter:
    start, stop = map(int, numbering.starts[number : number + 2])
    about = {"build": build, "part": number, "start": start, "stop": stop}
    writer = StoreWriter(folder / part_name(number), name=fields["name"], part=about)
    # Of a graph, not of a part: the first part keeps it.
    writer.self_loops_removed = 0 if number else fields["self_loops_removed"]
    writer.class_names = tuple(fields["class_names"])
    return writer


def _write_edges(
    writers: Sequence[StoreWriter], fields: Mapping[str, Any], numbering: Numbering
) -> int:
    """Writes structure and weights; returns the number of undirected edges between parts."""
    indptr, indices, weight = fields["indptr"], fields["indices"], fields.get("edge_weight")
    kind = np.int32 if len(indptr) - 1 < 1 << 31 else np.int64
    tables: dict[str, tuple[Array, Any]] = {"indices": (indices, kind)}
    if weight is not None:
        tables["edge_weight"] = (weight, np.float32)
    out = _RaggedTables(writers, "indptr", tables, indptr, numbering)
    cut = 0
    for rows in row_blocks(indptr):
        local, entries = entries_of(indptr, rows)
        order, lengths, owners = _sorted_rows(local, rows, numbering)
        places = _places(local[order], lengths)
        columns = numbering.of(np.asarray(indices[entries])[places])
        of_row = np.repeat(np.arange(len(order)), lengths)
        cut += int((numbering.owners(columns) != owners[of_row]).sum())
        moved = {"indices": columns}
        if weight is not None:
            moved["edge_weight"] = np.asarray(weight[entries])[places]
        if numbering.numbers is not None:
            # Rows are grouped by part; within a row, neighbours must ascend again. One number for
            # both keys fits into 64 bits: a block has at most 2^21 rows, a graph 2^41 nodes.
            num_nodes = int(numbering.starts[-1])
            keys = of_row * num_nodes + columns
            if weight is None:
                keys.sort()
            else:
                ascending = np.argsort(keys)
                keys, moved["edge_weight"] = keys[ascending], moved["edge_weight"][ascending]
            moved["indices"] = keys - of_row * num_nodes
        out.append(owners, lengths, moved)
    out.close()
    return cut // 2


def _write_rows(
    writers: Sequence[StoreWriter], fields: Mapping[str, Any], numbering: Numbering
) -> None:
    """Writes what belongs to nodes: features, labels, masks and ids."""
    x, ids = fields["x"], fields.get("node_ids")
    tables: dict[str, Array] = {name: fields[name] for name in ("y", *MASKS) if name in fields}
    if scipy.sparse.issparse(x):
        for writer in writers:
            writer.num_features = int(x.shape[1])
        kinds = {"x_indices": (x.indices, x.indices.dtype), "x_data": (x.data, np.float32)}
        _move_ragged(writers, "x_indptr", kinds, x.indptr, numbering)
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
        _move_ragged(writers, "node_id_offsets", text, ids.offsets, numbering)
    elif ids is not None:
        tables["node_ids"] = ids
    elif numbering.numbers is not None:  # nodes must be found by the numbers that they had
        tables["node_ids"] = np.empty(0, dtype=np.int64)
    for name, table in tables.items():
        _move_rows(writers, name, table, numbering)


def _move_rows(
    writers: Sequence[StoreWriter], name: str, table: Array, numbering: Numbering
) -> None:
    """Moves the rows of a table; an empty one stands for the numbers of the rows."""
    sizes, filled = np.diff(numbering.starts), np.zeros(len(writers), dtype=np.int64)
    outs = [
        writer.array(name, (int(size), *table.shape[1:]), table.dtype)
        for writer, size in zip(writers, sizes, strict=True)
    ]
    row_bytes = table.dtype.itemsize * int(np.prod(table.shape[1:], dtype=np.int64))
    for rows in slices(int(numbering.starts[-1]), max(1, BLOCK_BYTES // max(8, row_bytes))):
        numbers = numbering.of_rows(rows)
        order = np.argsort(numbers)
        values = np.asarray(table[rows])[order] if len(table) else rows.start + order
        for part, some in _grouped(numbering.owners(numbers[order])):
            count = some.stop - some.start
            outs[part][filled[part] : filled[part] + count] = values[some]
            filled[part] += count
    for writer in writers:
        writer.release(name)


class _RaggedTables:
    """Arrays of rows of different lengths, one set per part, filled block by block.

    Args:
        writers: of the parts.
        pointers: the name of the row pointers.
        tables: the names of the arrays that they point into, each with its source and its type.
        indptr: the source's row pointers.
        numbering: where each row goes.
    """

    def __init__(
        self,
        writers: Sequence[StoreWriter],
        pointers: str,
        tables: Mapping[str, tuple[Array, Any]],
        indptr: Array,
        numbering: Numbering,
    ) -> None:
        self._writers, self._names = writers, (pointers, *tables)
        totals = np.zeros(len(writers), dtype=np.int64)
        for rows in slices(len(indptr) - 1, BLOCK_BYTES // 8):
            owners = numbering.owners(numbering.of_rows(rows))
            lengths = np.diff(indptr[rows.start : rows.stop + 1])
            np.add.at(totals, owners, lengths)
        sizes = np.diff(numbering.starts)
        self._pointers = [
            writer.array(pointers, (int(size) + 1,), np.int64)
            for writer, size in zip(writers, sizes, strict=True)
        ]
        self._tables = {
            name: [
                writer.array(name, (int(total),), kind)
                for writer, total in zip(writers, totals, strict=True)
            ]
            for name, (_, kind) in tables.items()
        }
        self._rows, self._entries = np.zeros((2, len(writers)), dtype=np.int64)

    def append(self, owners: Array, lengths: Array, values: Mapping[str, Array]) -> None:
        """Adds rows that are grouped by part, in the order of their new numbers."""
        ends = np.concatenate([[0], lengths.cumsum()])
        for part, some in _grouped(owners):
            count, first, last = some.stop - some.start, ends[some.start], ends[some.stop]
            row, entry = self._rows[part], self._entries[part]
            pointers = entry + ends[some.start + 1 : some.stop + 1] - first
            self._pointers[part][row + 1 : row + 1 + count] = pointers
            for name, array in values.items():
                self._tables[name][part][entry : entry + last - first] = array[first:last]
            self._rows[part] += count
            self._entries[part] += last - first

    def close(self) -> None:
        """Writes all arrays to disk."""
        for writer in self._writers:
            for name in self._names:
                writer.release(name)


def _move_ragged(
    writers: Sequence[StoreWriter],
    pointers: str,
    tables: Mapping[str, tuple[Array, Any]],
    indptr: Array,
    numbering: Numbering,
) -> None:
    """Moves rows of different lengths as they are."""
    out = _RaggedTables(writers, pointers, tables, indptr, numbering)
    for rows in row_blocks(indptr):
        local, entries = entries_of(indptr, rows)
        order, lengths, owners = _sorted_rows(local, rows, numbering)
        places = _places(local[order], lengths)
        moved = {name: np.asarray(array[entries])[places] for name, (array, _) in tables.items()}
        out.append(owners, lengths, moved)
    out.close()


def _sorted_rows(local: Array, rows: slice, numbering: Numbering) -> tuple[Array, Array, Array]:
    """Returns a block's rows in the order of their new numbers, their lengths and their parts."""
    numbers = numbering.of_rows(rows)
    order = np.argsort(numbers)
    return order, np.diff(local)[order], numbering.owners(numbers[order])


def _places(starts: Array, lengths: Array) -> Array:
    """Returns the places of the entries of rows that begin at `starts`."""
    found: Array = np.repeat(starts - (lengths.cumsum() - lengths), lengths)
    found += np.arange(len(found))
    return found


def _grouped(owners: Array) -> Iterator[tuple[int, slice]]:
    """Yields each part that occurs in an ascending array, with its range of places."""
    found, first = np.unique(owners, return_index=True)
    last = [*first[1:].tolist(), len(owners)]
    for part, start, stop in zip(found.tolist(), first.tolist(), last, strict=True):
        yield part, slice(start, stop)
