"""Divides a typed store into parts, and joins parts again.

As of a plain store (`graphcl.store.partition`), memory does not grow with the graph, but for mapped
files that the kernel can take out of memory at any time. Beside source and parts these are unnamed
temporary files of 8 bytes per node, and of 8 more for the nodes that send in a relation while its
edges are written by source. The order ``neighbours`` also needs the edges of all relations, in both
directions, as those of one plain graph: 4 bytes each, or 8 from 2^31 nodes on.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import StoreError
from graphcl.files.arrays import map_npy
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Key, Relation
from graphcl.graphs.typed_store import nodes_of, read_typed_header, relation_of
from graphcl.store.moving import move_edges, move_reversed, take_places
from graphcl.store.ordering import (
    BLOCK_BYTES,
    Numbering,
    entries_of,
    order_types,
    row_blocks,
    scratch,
    slices,
)
from graphcl.store.partition import OnStep, build_id, check_division, part_digest, write_stores
from graphcl.store.parts import NOTHING, Source, joined, part_name, reordered, whole_fields
from graphcl.store.reader import (
    FORMAT,
    PART,
    check_structure,
    file_digest,
    open_store,
    read_store_header,
)
from graphcl.store.typed_parts import (
    EDGE_DTYPES,
    MANIFEST,
    MARK,
    edges_name,
    ends,
    open_typed_part,
    read_typed_parts,
)
from graphcl.store.writer import ArrayWriter

Array = npt.NDArray[Any]
BESIDE = ("edge_weight", "edge_features", "edge_ids")


def write_typed_parts(
    folder: Path,
    store: Path,
    *,
    parts: int,
    order: str,
    source: Source = NOTHING,
    on_step: OnStep = lambda _: None,
) -> None:
    """Writes the parts of a typed store, and `typed-parts.json` last, into a folder.

    Args:
        folder: a folder without parts, which the caller stages.
        store: the store to divide; it is not changed.
        parts: how many.
        order: as for a plain store; ``neighbours`` looks at the edges of all relations.
        source: what is said of the store.
        on_step: called with the name of each step before it starts.

    Raises:
        StoreError: the store is missing or damaged, or has fewer nodes than parts.
    """
    on_step("checking the store")
    about = read_typed_header(store)
    names = [one["name"] for one in about["types"]]
    fields = [open_store(store / f"nodes-{place}") for place in range(len(names))]
    for place, one in enumerate(fields):
        check_structure(str(store / f"nodes-{place}"), one)
    sizes = {name: one["x"].shape[0] for name, one in zip(names, fields, strict=True)}
    relations = [
        relation_of(store / f"relation-{place}", one, sizes)
        for place, one in enumerate(about["relations"])
    ]
    check_division(store, sum(sizes.values()), parts, order)
    build = build_id(
        {"parts": parts, "order": order, "name": about["name"], "sums": _sums(store, about)}
    )
    on_step(f"ordering the nodes: {order}")
    numberings = dict(
        zip(
            names,
            order_types(
                list(sizes.values()),
                lambda: flat_edges(relations, sizes, folder),
                parts,
                order,
                folder,
            ),
            strict=True,
        )
    )
    types = []
    for place, (name, one) in enumerate(zip(names, fields, strict=True)):
        on_step(f"writing the nodes of {name}")
        folders = [folder / part_name(number) / f"nodes-{place}" for number in range(parts)]
        write_stores(folders, one, numberings[name], build, lambda _: None)
        types.append(
            {
                "name": name,
                "features": about["types"][place]["features"],
                "num_features": int(one["x"].shape[1]),
                "starts": numberings[name].starts.tolist(),
                "sha256": [part_digest(path) for path in folders],
            }
        )
    listed = []
    for place, relation in enumerate(relations):
        on_step(f"writing the edges of {relation.name}")
        listed.append(_write_relation(folder, place, relation, numberings, build, parts))
    manifest = {MARK: FORMAT, "name": about["name"], "build": build, "order": order}
    manifest |= {"source": source._asdict(), "types": types, "relations": listed}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, allow_nan=False) + "\n")


def flat_edges(
    relations: Sequence[Relation], sizes: Mapping[str, int], folder: Path
) -> dict[str, Array]:
    """Returns `indptr` and `indices` of all relations in both directions, in unnamed files.

    Nodes are numbered type after type. Edges with the same ends are there several times.
    """
    firsts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    total = sum(sizes.values())
    indptr = scratch(total + 1, np.int64, folder)
    for one in relations:
        first = firsts[one.target] + 1
        for rows in slices(sizes[one.target], BLOCK_BYTES // 8):
            counts = np.diff(one.indptr[rows.start : rows.stop + 1])
            indptr[first + rows.start : first + rows.stop] += counts
        for some in slices(0 if one.undirected else len(one.indices), BLOCK_BYTES // 8):
            found, counts = np.unique(one.indices[some], return_counts=True)
            indptr[firsts[one.source] + 1 + found] += counts
    np.cumsum(indptr, out=indptr)
    free = scratch(total, np.int64, folder)
    free[:] = indptr[:-1]
    indices = scratch(int(indptr[-1]), np.int32 if total < 1 << 31 else np.int64, folder)
    for one in relations:
        for rows in row_blocks(one.indptr):
            local, entries = entries_of(one.indptr, rows)
            sources = firsts[one.source] + np.asarray(one.indices[entries])
            first = firsts[one.target] + rows.start
            targets = first + np.repeat(np.arange(len(local) - 1), np.diff(local))
            pairs = (
                [(targets, sources)] if one.undirected else [(targets, sources), (sources, targets)]
            )
            for receivers, senders in pairs:
                order, places = take_places(free, receivers)
                indices[places] = senders[order]
    return {"indptr": indptr, "indices": indices}


def join_typed_parts(path: Path, *, restored: bool = False) -> Graph:
    """Returns a typed graph with all parts, in memory: for graphs that fit. One part is mapped.

    Nodes are in the order of the parts; if `restored`, in that of the graph that was divided.
    """
    parts = read_typed_parts(path)
    every = [open_typed_part(path, number) for number in range(len(parts))]
    nodes: dict[str, Nodes] = {}
    rows: dict[str, Any] = {}
    for name, one in parts.types.items():
        fields, rows[name] = whole_fields(one) if restored else (joined(one), None)
        nodes[name] = nodes_of(fields, name, features=name in parts.featured)
    relations: dict[Key, Relation] = {}
    for key, about in parts.relations.items():
        each = [part.edges[key, False] for part in every]
        arrays: dict[str, Any] = dict(each[0])
        if len(each) > 1:
            arrays = {name: np.concatenate([one[name] for one in each]) for name in arrays}
            lengths = np.concatenate([np.diff(one["indptr"]) for one in each])
            pointers = np.concatenate([[0], lengths.cumsum()])
            arrays["indptr"] = pointers
            if restored:
                edges = reordered(pointers, arrays["indices"], rows[key[2]], rows[key[0]])
                arrays = {name: arrays[name][edges.entries] for name in BESIDE if name in arrays}
                arrays |= {"indptr": edges.indptr, "indices": edges.indices}
        if not about.undirected:
            del arrays["edge_ids"]  # they are 0, 1, …
        loops = about.self_loops_removed
        relations[key] = Relation(
            *key, **arrays, undirected=about.undirected, self_loops_removed=loops
        )
    return Graph(nodes, relations, parts.name)


def _sums(store: Path, about: Mapping[str, Any]) -> list[Any]:
    """Returns the checksums of all arrays of a typed store."""
    found: list[Any] = []
    for place, _ in enumerate(about["types"]):
        arrays = read_store_header(store / f"nodes-{place}").arrays
        found.append({name: one["sha256"] for name, one in sorted(arrays.items())})
    for place, one in enumerate(about["relations"]):
        folder = store / f"relation-{place}"
        found.append({name: file_digest(folder / f"{name}.npy") for name in sorted(one["arrays"])})
    return found


def _write_relation(
    folder: Path,
    place: int,
    relation: Relation,
    numberings: Mapping[str, Numbering],
    build: str,
    parts: int,
) -> dict[str, Any]:
    """Writes the edges of a relation in its directions; returns what is said of it."""
    targets, sources = numberings[relation.target], numberings[relation.source]
    edges: dict[str, Array] = {"indptr": relation.indptr, "indices": relation.indices}
    for name in BESIDE:
        if getattr(relation, name) is not None:
            edges[name] = getattr(relation, name)
    there = _writers(folder, edges_name(place, False), parts)
    cut = move_edges(there, edges, targets, sources, np.int64)
    if not relation.undirected:
        _number_entries(there)
    sums = [_complete(there, relation.key, False, numberings, build)]
    if not relation.undirected:
        back = _writers(folder, edges_name(place, True), parts)
        names = [name for name in EDGE_DTYPES if name in {*edges, "edge_ids"}]
        moved = [
            {name: map_npy(one.folder / f"{name}.npy", StoreError) for name in names}
            for one in there
        ]
        move_reversed(back, moved, targets, sources, folder)
        sums.append(_complete(back, relation.key, True, numberings, build))
    return {
        "key": list(relation.key),
        "undirected": relation.undirected,
        "weighted": relation.edge_weight is not None,
        "num_edge_features": relation.num_edge_features,
        "num_edges": relation.num_edges,
        "cut_edges": cut // 2 if relation.undirected else cut,
        "self_loops_removed": relation.self_loops_removed,
        "sha256": sums,
    }


def _writers(folder: Path, name: str, parts: int) -> list[ArrayWriter]:
    found = []
    for number in range(parts):
        own = folder / part_name(number) / name
        own.mkdir(parents=True)
        found.append(ArrayWriter(own, EDGE_DTYPES))
    return found


def _number_entries(writers: Sequence[ArrayWriter]) -> None:
    """Numbers the entries of all parts, one after the other: each is an edge of its own."""
    first = 0
    for writer in writers:
        count = len(map_npy(writer.folder / "indices.npy", StoreError))
        numbers = writer.array("edge_ids", (count,), np.int64)
        for some in slices(count, BLOCK_BYTES // 8):
            numbers[some] = np.arange(first + some.start, first + some.stop)
        writer.release("edge_ids")
        first += count


def _complete(
    writers: Sequence[ArrayWriter],
    key: Key,
    backwards: bool,
    numberings: Mapping[str, Numbering],
    build: str,
) -> list[str]:
    """Writes what each part says of its edges, and returns the checksums of that."""
    starts = numberings[ends(key, backwards)[0]].starts
    for number, writer in enumerate(writers):
        about: dict[str, Any] = {"graphcl_part": FORMAT, "build": build, "part": number}
        about |= {"start": int(starts[number]), "stop": int(starts[number + 1])}
        about["arrays"] = writer.describe()
        (writer.folder / PART).write_text(json.dumps(about, indent=1) + "\n")
    return [part_digest(writer.folder) for writer in writers]
