"""Builds a typed store from tables, array by array, in bounded memory.

What grows with the edges is sorted and joined by DuckDB, on disk if need be, and written in batches
as it comes out. The ids of the nodes are held in memory, and a few numbers for each node. The
result is what `graphcl.tabular.typed.load_typed` would read and `Graph.save` would write.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, StoreError
from graphcl.files.atomic import check_new_folder, reserve, whole_folder
from graphcl.files.npy import shorten_npy
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Key, Relation
from graphcl.graphs.reverses import describe_reverse, find_reverse
from graphcl.graphs.typed_partition import join_typed_parts
from graphcl.graphs.typed_store import DTYPES, HEADER, Header, relation_of
from graphcl.store.parts import read_parts
from graphcl.store.typed_parts import is_typed_parts, open_typed_part, read_typed_parts
from graphcl.store.writer import StoreWriter, write_names
from graphcl.tabular.build import ids_of_column, stays_sparse
from graphcl.tabular.edges import MAX_NODES, Entries
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import read_preparation, write_preparation
from graphcl.tabular.typed import BLOCK, complete_report
from graphcl.tabular.typed_edges import EdgeTable, FoundRelation
from graphcl.tabular.typed_tables import TypedReport, TypedTables, open_typed_tables

JOINING = 3  # times the size of its files: what a graph in parts takes while it is joined
_FLOAT32 = np.finfo(np.float32)
Ints = npt.NDArray[np.int64]


def build_typed_store(
    edges: Any,
    options: TableOptions,
    *,
    out: Path,
    overwrite: bool = False,
    on_step: Callable[[str], None] = lambda _: None,
) -> TypedReport:
    """Writes a typed store from tables; it appears complete or not at all.

    `on_step` is called with the name of each step before it starts.

    Raises:
        GraphError: tables are wrong; the message lists all that is.
        StoreError: something is at `out`.
    """
    check_new_folder(out, "store", HEADER, StoreError, overwrite=overwrite)
    with whole_folder(out) as staging:
        with open_typed_tables(edges, options, on_step=on_step) as found:
            header = Header(found.name)
            sizes = {kind: one.num_nodes for kind, one in found.nodes.items()}
            kept, said = list[Relation](), list[str]()
            for kind in found.nodes:
                on_step(f"writing the nodes of {kind}")
                _write_nodes(staging, header, found, kind)
                found.nodes[kind].rest()
            for table in found.lists:
                for one in table.relations:
                    on_step(f"sorting the edges of {one.name}")
                    _write_relation(staging, header, found, table, one, directed=options.directed)
                    folder = staging / f"relation-{len(header.relations) - 1}"
                    written = relation_of(folder, header.relations[-1], sizes)
                    other, same = find_reverse(written, kept)
                    if other is not None:
                        said.append(describe_reverse(written, other, same=same))
                    if same:  # another one read backwards
                        header.relations.pop()
                        shutil.rmtree(folder)
                    else:
                        kept.append(written)
                table.duck.rest()
            header.write(staging)
        graph = Graph.open(staging)  # a store that cannot be opened must not appear
        complete_report(found, graph, said)
        return found.report


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
    return Graph(nodes, relations, graph.name)


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


def _write_nodes(staging: Path, header: Header, found: TypedTables, kind: str) -> None:
    """Writes the nodes of a type as a store without edges."""
    tables, options, ids = found.nodes[kind], found.options[kind], found.ids[kind]
    width = tables.num_features
    folder = header.add_type(staging, kind, width > 0)
    with StoreWriter(folder, name=f"{found.name} ({kind})") as store:
        store.write("indptr", np.zeros(tables.num_nodes + 1, np.int64))
        store.write("indices", np.zeros(0, np.int32))
        if width and stays_sparse(tables, options):
            store.num_features = width
            tables.fill_sparse_features(store)
        else:
            x = store.array("x", (tables.num_nodes, max(1, width)), np.float32)
            if width:
                tables.fill_features(x)
            del x
            store.release("x")
        for name, values in {"y": tables.labels(), **tables.masks()}.items():
            if values is not None:
                store.write(name, values)
        if ids.given:
            write_names(store, ids_of_column(ids.keys))
        store.class_names = tables.report.class_names
    if tables.report.preparation is not None:
        write_preparation(folder, tables.report.preparation)


def _write_relation(
    staging: Path,
    header: Header,
    found: TypedTables,
    table: EdgeTable,
    one: FoundRelation,
    *,
    directed: bool,
) -> None:
    """Writes the edges of a relation, sorted by targets and sources."""
    source, target = one.types
    key: Key = (source, one.name, target)
    pairs = _Pairs(table, one, within=source == target)
    arrays = ["indptr", "indices"]
    arrays += ["edge_weight"] if pairs.weighted else []
    arrays += ["edge_features"] if one.features.width else []
    undirected = source == target and not directed and pairs.symmetric()
    arrays += ["edge_ids"] if undirected else []
    folder = header.add_relation(staging, key, arrays, pairs.loops)
    writer = _Writer(folder, pairs.rows, one.features.width, arrays)
    counts = np.zeros(found.nodes[target].num_nodes + 1, np.int64)
    features = pairs.features()
    for sources, targets, weights, places in pairs.sorted():
        first = int(targets[0])
        degrees = np.bincount(targets - first)
        counts[first + 1 : first + 1 + len(degrees)] += degrees
        rows = None if features is None or places is None else features[places]
        writer.add(indices=sources, edge_weight=weights, edge_features=rows)
    np.cumsum(counts, out=counts)
    writer.complete(counts)
    if undirected:
        _number_edges(folder, counts)
    if one.features.preparation is not None:
        write_preparation(folder, one.features.preparation)


class _Pairs:
    """The edges of a relation as numbers of nodes, in the session's table ``pairs``.

    Args:
        table: the list of edges.
        one: the relation.
        within: whether both ends are of one type; an edge from a node to itself is left out then.

    Attributes:
        rows: how many rows are kept.
        loops: how many are left out.
        weighted: whether edges have weights.
    """

    def __init__(self, table: EdgeTable, one: FoundRelation, *, within: bool) -> None:
        self._duck, self._one, self._where = table.duck, one, "u <> v" if within else "true"
        self.weighted = table.weight is not None
        table.create_pairs(one)
        (total,) = self._duck.row("SELECT count(*) FROM pairs")
        (self.rows,) = self._duck.row(f"SELECT count(*) FROM pairs WHERE {self._where}")
        self.loops = int(total - self.rows)
        if self.weighted:
            self._check_weights()

    def _check_weights(self) -> None:
        largest = float(_FLOAT32.max) / max(1, 2 * (self.rows + self.loops))
        wrong = self._duck.rows(
            f"SELECT w, place FROM pairs WHERE NOT (w BETWEEN {float(_FLOAT32.tiny)!r}::DOUBLE AND "
            f"{largest!r}::DOUBLE) ORDER BY place LIMIT 1"
        )
        if wrong:
            raise GraphError(
                f"relation {self._one.key}: edge_weight: {wrong[0][0]} at edge {wrong[0][1]}; "
                "weights are positive, finite and such that float32 holds their sum"
            )

    def symmetric(self) -> bool:
        """Returns whether each edge is listed in both directions, with one weight."""
        if self._one.features.width or not self.rows:
            return False
        entries = Entries(self._duck, self.weighted)
        for _ in entries:
            pass
        return entries.counts.symmetric

    def features(self) -> npt.NDArray[np.float32] | None:
        """Returns the features of the edges in the order of the list, mapped from a file."""
        features = self._one.features
        if not features.width:
            return None
        file = self._duck.folder / "edge_features.npy"
        shape = (self._one.rows, features.width)
        found = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=shape)
        reserve(file)
        assert features.features is not None
        features.features.fill(found)
        return found

    def sorted(self) -> Iterator[tuple[Ints, Ints, Any, Ints | None]]:
        """Yields sources, targets, weights and places in the list, by target and source.

        Edges with the same ends are one, with the sum of their weights, unless they have features.
        """
        merges = not self._one.features.width
        # Also sorted by weight: a sum of floats depends on their order.
        weight, last = (", w" if self.weighted else ""), ("w" if self.weighted else "k")
        order = f"k, {last}" if merges else "k, place"
        query = (
            f"SELECT v * {MAX_NODES} + u AS k, place{weight} FROM pairs WHERE {self._where} "
            f"ORDER BY {order}"
        )
        held: list[npt.NDArray[Any]] = []
        for batch in self._duck.batches(query):
            parts: list[npt.NDArray[Any]] = [column.to_numpy() for column in batch.columns]
            if held:
                parts = [np.concatenate(pair) for pair in zip(held, parts, strict=True)]
            # The last edge may continue in the next batch.
            cut = int(np.searchsorted(parts[0], parts[0][-1])) if merges else len(parts[0])
            held, ready = [part[cut:] for part in parts], [part[:cut] for part in parts]
            if len(ready[0]):
                yield self._merged(ready, merges)
        if held and len(held[0]):
            yield self._merged(held, merges)

    def _merged(
        self, parts: list[npt.NDArray[Any]], merges: bool
    ) -> tuple[Ints, Ints, Any, Ints | None]:
        keys, places = parts[:2]
        weights = parts[2] if self.weighted else None
        if not merges:
            return keys % MAX_NODES, keys // MAX_NODES, weights, places
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        keys = keys[starts]
        if weights is not None:
            weights = np.add.reduceat(weights, starts)
        return keys % MAX_NODES, keys // MAX_NODES, weights, None


class _Writer:
    """Writes arrays of entries as they come; their number is known at the end."""

    def __init__(self, folder: Path, most: int, width: int, arrays: list[str]) -> None:
        self._folder, self._count = folder, 0
        self._maps: dict[str, npt.NDArray[Any]] = {}
        for name in arrays:
            if name in ("indices", "edge_weight", "edge_features"):
                shape = (most, width) if name == "edge_features" else (most,)
                self._maps[name] = _mapped(folder / f"{name}.npy", shape, DTYPES[name])

    def add(self, **parts: Any) -> None:
        """Appends entries."""
        rows = slice(self._count, self._count + len(parts["indices"]))
        for name, values in parts.items():
            if values is not None:
                self._maps[name][rows] = values
        self._count = rows.stop

    def complete(self, indptr: Ints) -> None:
        """Cuts the arrays to their length and writes the pointers."""
        names = list(self._maps)
        for name in names:
            mapped: Any = self._maps.pop(name)
            with suppress(AttributeError):  # an array without entries is no map
                mapped.flush()
            del mapped
            shorten_npy(self._folder / f"{name}.npy", self._count)
        np.save(self._folder / "indptr.npy", indptr)


def _mapped(file: Path, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
    """Returns a new array in a file, to be filled; memory if it has no entries."""
    if 0 in shape:
        np.save(file, np.zeros(shape, dtype))
        return np.zeros(shape, dtype)
    mapped = np.lib.format.open_memmap(file, mode="w+", dtype=dtype, shape=shape)
    reserve(file)
    return mapped


def _number_edges(folder: Path, indptr: Ints) -> None:
    """Writes the number of the edge behind each entry of a symmetric relation.

    An edge is numbered at the entry whose source is larger than its target, in their order. The
    entry in the other direction is in the row of the larger end. The edges of a row come in the
    order of their smaller ends, which is that of the row's entries: each takes the next free place.
    """
    indices = np.load(folder / "indices.npy", mmap_mode="r")
    ids = _mapped(folder / "edge_ids.npy", indices.shape, np.int64)
    free, edges = indptr[:-1].copy(), 0
    for start in range(0, len(indices), BLOCK):
        sources = np.asarray(indices[start : start + BLOCK])
        places = np.arange(start, start + len(sources))
        targets = np.searchsorted(indptr, places, side="right") - 1
        first = sources > targets
        numbers = edges + np.arange(int(first.sum()))
        ids[places[first]] = numbers
        larger = sources[first]
        order = np.argsort(larger, kind="stable")
        rows, counts = np.unique(larger, return_counts=True)
        rank = np.arange(len(larger)) - np.repeat(np.cumsum(counts) - counts, counts)
        ids[np.repeat(free[rows], counts) + rank] = numbers[order]
        free[rows] += counts
        edges += len(numbers)
