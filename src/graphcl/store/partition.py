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

The orders of nodes are ``neighbours``, which brings neighbours together; ``hash``, which spreads
nodes evenly whatever they are; and ``as-is``, which leaves the numbers and cuts equal ranges.

Rows are read in their order, sorted by their new numbers within a block, and appended to the arrays
of their parts: so each part has its rows in the order of their new numbers, because these keep the
order of the rows within a part.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Array, blocks
from graphcl.errors import StoreError, demand, option, require
from graphcl.files.arrays import scratch_array
from graphcl.kernels.placing import (
    NOWHERE,
    place_by_hash,
    place_by_neighbours,
)
from graphcl.store.columns import Names, entry_places
from graphcl.store.header import MASKS, MOST_PARTS, ORDERS, Key, Store, read_store
from graphcl.store.reader import Edges, open_part
from graphcl.store.writer import ArrayWriter, StoreWriter, build_id

PASSES = 10  # over the edges for ``neighbours``; later ones change little
SLACK = 0.05  # by how much a part may exceed an equal share, so that nodes can move
BLOCK_BYTES = 1 << 24  # of entries or features that are moved at a time


@dataclass(frozen=True, eq=False)
class Numbering:
    """The new numbers of all nodes.

    Attributes:
        starts: the first number of each part, and the number of nodes at the end.
        numbers: the new number of each node; None if numbers stay.
    """

    starts: Array
    numbers: Array | None

    def of_rows(self, rows: slice) -> Array:
        """Returns the new numbers of a range of nodes."""
        return self.of(np.arange(rows.start, rows.stop))

    def of(self, nodes: Array) -> Array:
        """Returns the new numbers of some nodes."""
        found = nodes if self.numbers is None else self.numbers[nodes]
        return np.asarray(found, dtype=np.int64)

    def owners(self, numbers: Array) -> Array:
        """Returns the part of each new number."""
        return np.searchsorted(self.starts, numbers, side="right") - 1


def order_types(
    sizes: Sequence[int],
    edges: Callable[[], Mapping[str, Any]],
    parts: int,
    order: str,
    folder: Path,
) -> list[Numbering]:
    """Decides which part each node belongs to, and numbers the nodes of each type part by part.

    Args:
        sizes: the number of nodes of each type.
        edges: called for the order ``neighbours``; returns `indptr` and `indices` of the nodes of
            all types, one type after the other.
        parts: how many, at most as many as nodes of all types. A part may lack nodes of a type.
        order: one of the three above.
        folder: for temporary files without a name.
    """
    if order == "as-is":
        spread = [np.arange(parts) < size % parts for size in sizes]
        pairs = zip(sizes, spread, strict=True)
        return [Numbering(_starts(size // parts + more), None) for size, more in pairs]
    placed = scratch_array((sum(sizes),), np.int32, folder)
    if order == "hash":
        place_by_hash(placed, parts)
        held = _counted(placed, parts)
    else:
        held = _by_neighbours(edges(), parts, placed)
    _fill_empty(placed, held)
    found, first = [], 0
    for size in sizes:
        own = placed[first : first + size]
        starts = _starts(_counted(own, parts))
        numbers = scratch_array((size,), np.int32 if size < 1 << 31 else np.int64, folder)
        free = starts.copy()
        for rows in blocks(size, BLOCK_BYTES // 8):
            by_part, places = take_places(free, own[rows])
            numbers[rows][by_part] = places
        found.append(Numbering(starts, numbers))
        first += size
    return found


def _counted(placed: Array, parts: int) -> Array:
    """Returns how many nodes each part has."""
    sizes = np.zeros(parts, dtype=np.int64)
    for rows in blocks(len(placed), BLOCK_BYTES // 8):
        sizes += np.bincount(placed[rows], minlength=parts)
    return sizes


def _by_neighbours(fields: Mapping[str, Any], parts: int, placed: Array) -> Array:
    indptr, indices = fields["indptr"], fields["indices"]
    sizes, num_nodes = np.zeros(parts, dtype=np.int64), len(placed)
    capacity = max(-(-num_nodes // parts), int(num_nodes / parts * (1 + SLACK)))
    if capacity * parts == num_nodes:
        capacity += 1  # no node could move
    for rows in blocks(num_nodes, BLOCK_BYTES // 4):
        placed[rows] = NOWHERE
    for number in range(PASSES):
        for rows in row_blocks(indptr):
            local, entries = entries_of(indptr, rows)
            block = np.asarray(indices[entries])
            place_by_neighbours(
                local, block, placed, sizes, first=rows.start, capacity=capacity, again=number > 0
            )
    return sizes


def _fill_empty(placed: Array, sizes: Array) -> None:
    """Gives an empty part a node of the largest: few nodes can leave one empty."""
    for part in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        placed[int(np.argmax(placed == largest))] = part
        sizes[largest] -= 1
        sizes[part] += 1


def entries_of(indptr: Array, rows: slice) -> tuple[Array, slice]:
    """Returns the row pointers of a block, from 0, and which entries it has."""
    pointers = np.asarray(indptr[rows.start : rows.stop + 1], dtype=np.int64)
    return pointers - pointers[0], slice(int(pointers[0]), int(pointers[-1]))


def row_blocks(indptr: Array, entry_bytes: int = 8) -> Iterator[slice]:
    """Yields ranges of rows with few enough entries, or a single row with many."""
    start, entries, last = 0, max(1, BLOCK_BYTES // entry_bytes), len(indptr) - 1
    while start < last:
        limit = min(last, start + entries)
        fits = np.searchsorted(indptr[start : limit + 1], indptr[start] + entries, side="right") - 1
        stop = max(start + 1, start + int(fits))
        yield slice(start, stop)
        start = stop


def _starts(sizes: Array) -> Array:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


# Moving


def move_edges(
    writers: Sequence[ArrayWriter],
    edges: Mapping[str, Array],
    receivers: Numbering,
    senders: Numbering,
    kind: Any,
) -> int:
    """Moves edges with the nodes that receive, and returns how many entries lead to another part.

    Args:
        writers: of the parts.
        edges: `indptr` by receiver, the senders as `indices`, and any arrays of entries.
        receivers: the new numbers of the rows.
        senders: the new numbers of `indices`; a plain graph has one numbering for both.
        kind: the type of the numbers that are written.
    """
    beside = {name: edges[name] for name in edges if name not in ("indptr", "indices")}
    tables = {"indices": (edges["indices"], kind)}
    tables |= {name: (array, array.dtype) for name, array in beside.items()}
    cut = 0

    def renumbered(moved: dict[str, Array], lengths: Array, owners: Array) -> dict[str, Array]:
        nonlocal cut
        columns = moved["indices"] = senders.of(moved["indices"])
        of_row = np.repeat(np.arange(len(lengths)), lengths)
        cut += int((senders.owners(columns) != owners[of_row]).sum())
        if senders.numbers is None:
            return moved
        # Rows are grouped by part; within a row, senders must ascend again. One number for both
        # keys fits into 64 bits: a block has at most 2^21 rows, a graph 2^41 nodes.
        count = int(senders.starts[-1])
        keys = of_row * count + columns
        if beside:  # edges with the same ends stay in their order
            ascending = np.argsort(keys, kind="stable")
            return {name: values[ascending] for name, values in moved.items()}
        keys.sort()
        return {"indices": keys - of_row * count}

    move_ragged(
        writers,
        "indptr",
        tables,
        edges["indptr"],
        receivers,
        entry_bytes=_entry_bytes(beside),
        change=renumbered,
    )
    return cut


def move_reversed(
    writers: Sequence[ArrayWriter],
    edges: Sequence[Mapping[str, Array]],
    receivers: Numbering,
    senders: Numbering,
    folder: Path,
) -> None:
    """Writes edges that were moved once more, with the nodes that send; these receive now.

    The entries of a node are in the order of the entries that are read.

    Args:
        writers: of the parts.
        edges: of each part, as `move_edges` wrote them.
        receivers: whose numbers are the rows of `edges`.
        senders: whose numbers are their `indices`.
        folder: for a temporary file without a name, of 8 bytes per sender.
    """
    free = scratch_array((int(senders.starts[-1]),), np.int64, folder)
    for part in edges:
        for some in blocks(len(part["indices"]), BLOCK_BYTES // 8):
            found, counts = np.unique(part["indices"][some], return_counts=True)
            free[found] += counts
    beside = {name: one for name, one in edges[0].items() if name not in ("indptr", "indices")}
    kinds = {"indices": (edges[0]["indices"].dtype, ())}
    kinds |= {name: (one.dtype, one.shape[1:]) for name, one in beside.items()}
    outs: list[dict[str, Array]] = []
    for number, writer in enumerate(writers):
        start, stop = map(int, senders.starts[number : number + 2])
        pointers = writer.array("indptr", (stop - start + 1,), np.int64)
        np.cumsum(free[start:stop], out=pointers[1:])
        free[start:stop] = pointers[:-1]  # from counts to the next free place
        outs.append(
            {
                name: writer.array(name, (int(pointers[-1]), *shape), dtype)
                for name, (dtype, shape) in kinds.items()
            }
        )
    for number, part in enumerate(edges):
        for rows in row_blocks(part["indptr"], _entry_bytes(beside)):
            local, entries = entries_of(part["indptr"], rows)
            first = int(receivers.starts[number]) + rows.start
            values = {"indices": first + np.repeat(np.arange(len(local) - 1), np.diff(local))}
            values |= {name: np.asarray(part[name][entries]) for name in beside}
            sent = np.asarray(part["indices"][entries])
            order, places = take_places(free, sent)
            for owner, some in _grouped(senders.owners(sent[order])):
                for name, array in values.items():
                    outs[owner][name][places[some]] = array[order[some]]
    for writer in writers:
        for name in ("indptr", *kinds):
            writer.release(name)


def take_places(free: Array, rows: Array) -> tuple[Array, Array]:
    """Gives each entry the next free place of its row.

    Returns the entries in the order of their rows, and their places in this order.
    """
    order = np.argsort(rows, kind="stable")
    found, counts = np.unique(rows, return_counts=True)
    firsts = np.cumsum(counts) - counts
    places = np.repeat(free[found] - firsts, counts) + np.arange(len(rows))
    free[found] += counts
    return order, places


def _entry_bytes(beside: Mapping[str, Array]) -> int:
    widths = [
        one.dtype.itemsize * int(np.prod(one.shape[1:], dtype=np.int64)) for one in beside.values()
    ]
    return max([8, *widths])


def move_rows(
    writers: Sequence[ArrayWriter], name: str, table: Array, numbering: Numbering
) -> None:
    """Moves the rows of a table; an empty one stands for the numbers of the rows."""
    sizes, filled = np.diff(numbering.starts), np.zeros(len(writers), dtype=np.int64)
    outs = [
        writer.array(name, (int(size), *table.shape[1:]), table.dtype)
        for writer, size in zip(writers, sizes, strict=True)
    ]
    row_bytes = table.dtype.itemsize * int(np.prod(table.shape[1:], dtype=np.int64))
    for rows in blocks(int(numbering.starts[-1]), max(1, BLOCK_BYTES // max(8, row_bytes))):
        numbers = numbering.of_rows(rows)
        order = np.argsort(numbers)
        values = np.asarray(table[rows])[order] if len(table) else rows.start + order
        for part, some in _grouped(numbering.owners(numbers[order])):
            count = some.stop - some.start
            outs[part][filled[part] : filled[part] + count] = values[some]
            filled[part] += count
    for writer in writers:
        writer.release(name)


def move_ragged(
    writers: Sequence[ArrayWriter],
    pointers: str,
    tables: Mapping[str, tuple[Array, Any]],
    indptr: Array,
    numbering: Numbering,
    *,
    entry_bytes: int = 8,
    change: Callable[[dict[str, Array], Array, Array], dict[str, Array]] | None = None,
) -> None:
    """Moves rows of different lengths, block by block.

    Args:
        writers: of the parts.
        pointers: the name of the row pointers.
        tables: the names of the arrays that they point into, each with its source and its type.
        indptr: the source's row pointers.
        numbering: where each row goes.
        entry_bytes: how large an entry of the widest table is.
        change: called with the entries of a block, and the length and the part of each row; returns
            what is written.
    """
    totals, rows_in, entries_in = np.zeros((3, len(writers)), dtype=np.int64)
    for rows in blocks(len(indptr) - 1, BLOCK_BYTES // 8):
        lengths = np.diff(indptr[rows.start : rows.stop + 1])
        np.add.at(totals, numbering.owners(numbering.of_rows(rows)), lengths)
    outs = []
    for writer, size, total in zip(writers, np.diff(numbering.starts), totals, strict=True):
        out = {pointers: writer.array(pointers, (int(size) + 1,), np.int64)}
        for name, (source, kind) in tables.items():
            out[name] = writer.array(name, (int(total), *source.shape[1:]), kind)
        outs.append(out)
    for rows in row_blocks(indptr, entry_bytes):
        local, entries = entries_of(indptr, rows)
        numbers = numbering.of_rows(rows)
        order = np.argsort(numbers)
        lengths, owners = np.diff(local)[order], numbering.owners(numbers[order])
        places = entry_places(local[order], lengths)
        moved = {name: np.asarray(array[entries])[places] for name, (array, _) in tables.items()}
        moved = moved if change is None else change(moved, lengths, owners)
        ends = np.concatenate([[0], lengths.cumsum()])
        for part, some in _grouped(owners):
            first, last = ends[some.start], ends[some.stop]
            row, entry = rows_in[part] + 1, entries_in[part]
            here = ends[some.start + 1 : some.stop + 1]
            outs[part][pointers][row : row + len(here)] = entry + here - first
            for name, array in moved.items():
                outs[part][name][entry : entry + last - first] = array[first:last]
            rows_in[part] += len(here)
            entries_in[part] += last - first
    for writer in writers:
        for name in (pointers, *tables):
            writer.release(name)


def _grouped(owners: Array) -> Iterator[tuple[int, slice]]:
    """Yields each part that occurs in an ascending array, with its range of places."""
    found, first = np.unique(owners, return_index=True)
    last = [*first[1:].tolist(), len(owners)][: len(found)]
    for part, start, stop in zip(found.tolist(), first.tolist(), last, strict=True):
        yield part, slice(start, stop)


def divide(
    writer: StoreWriter,
    store: Path,
    *,
    parts: int,
    order: str,
    on_step: Callable[[str], None] = lambda _: None,
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
    of_nodes = {
        name: writer.add_type(name, numberings[name].starts.tolist(), one.class_names)
        for name, one in header.types.items()
    }
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
