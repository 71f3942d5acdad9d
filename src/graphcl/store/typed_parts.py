"""Opens typed stores in parts: each part has a range of the nodes of every type.

    FOLDER/typed-parts.json              types and their ranges, relations, the build
    FOLDER/part-00000/nodes-0/           the nodes of the first type, as in a plain part
    FOLDER/part-00000/relation-0/        the edges of the first relation, by target
    FOLDER/part-00000/relation-0-back/   the same edges by source, unless it is undirected

Every type is numbered by itself, and a part may lack nodes of a type. In both directions of a
relation edges are with the node that receives, so an edge is there twice, with its weight and its
vector, as an undirected one is anyway:

    indptr          by the receivers of the part, counted within it
    indices         the senders, numbers of the whole graph; ascending for each receiver
    edge_ids        the number of the edge in the whole graph, the same in both directions
    edge_weight     if edges have weights
    edge_features   if edges have vectors

As of a plain store in parts, a process needs its own part and `typed-parts.json`; every file has a
checksum; and a part that is missing, damaged or of another build is named.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import StoreError
from graphcl.store.parts import (
    MOST_PARTS,
    ORDERS,
    Part,
    Parts,
    Source,
    part_name,
    part_of,
    read_part_description,
    verified,
)
from graphcl.store.reader import (
    PART,
    check_arrays,
    check_csr,
    map_array,
    read_description,
    require_count,
    verify_arrays,
)

MANIFEST = "typed-parts.json"
KIND = "typed store in parts"
MARK = "graphcl_typed_parts"
MANIFEST_BYTES = 1 << 26
EDGE_DTYPES = {
    "indptr": ("int64",),
    "indices": ("int64",),
    "edge_ids": ("int64",),
    "edge_weight": ("float32",),
    "edge_features": ("float32",),
}
Key = tuple[str, str, str]
Edges = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class PartsRelation:
    """What is said of a relation.

    Attributes:
        key: source type, name and target type.
        undirected: whether both directions are one.
        weighted: whether edges have weights.
        num_edge_features: the width of their vectors, or 0.
        num_edges: how many; each undirected edge counts once.
        cut_edges: how many have their ends in two parts.
        self_loops_removed: as in a typed store.
    """

    key: Key
    undirected: bool
    weighted: bool
    num_edge_features: int
    num_edges: int
    cut_edges: int
    self_loops_removed: int

    @property
    def backwards(self) -> tuple[bool, ...]:
        """The directions that are kept."""
        return (False,) if self.undirected else (False, True)


@dataclass(frozen=True, eq=False)
class TypedParts:
    """What `typed-parts.json` says of a typed graph in parts.

    Attributes:
        path: the folder.
        name: the graph's name.
        build: the id of the build, 32 hex digits.
        order: how nodes were ordered.
        types: for each type the ranges of its nodes.
        featured: the types that have features; the others have a column of zeros in their files.
        relations: by their keys.
        digests: for each relation and direction, the checksum of what each part says of it.
        source: what was divided.
    """

    path: Path
    name: str
    build: str
    order: str
    types: Mapping[str, Parts]
    featured: frozenset[str]
    relations: Mapping[Key, PartsRelation]
    digests: Mapping[tuple[Key, bool], tuple[str, ...]]
    source: Source

    def __len__(self) -> int:
        return len(next(iter(self.types.values())))

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(one.num_nodes for one in self.types.values())

    @property
    def num_edges(self) -> int:
        """Number of edges of all relations."""
        return sum(one.num_edges for one in self.relations.values())

    @property
    def num_features(self) -> int:
        """Number of features of all types."""
        return sum(self.types[name].num_features for name in self.featured)

    @property
    def cut_edges(self) -> int:
        """How many of them have their ends in two parts."""
        return sum(one.cut_edges for one in self.relations.values())

    @property
    def cut_share(self) -> float:
        """The share of edges that have their ends in two parts."""
        return self.cut_edges / self.num_edges if self.num_edges else 0.0

    @property
    def sizes(self) -> list[int]:
        """The nodes of each part."""
        counts = [np.diff(one.starts) for one in self.types.values()]
        return [int(size) for size in np.sum(counts, axis=0)]

    def edges_folder(self, number: int, key: Key, backwards: bool) -> Path:
        """Returns where a part has one direction of a relation."""
        return (
            self.path / part_name(number) / edges_name(list(self.relations).index(key), backwards)
        )


@dataclass(frozen=True, eq=False)
class TypedPart:
    """One part of a typed graph, mapped from disk.

    Attributes:
        parts: the graph that it belongs to.
        number: which part.
        nodes: the part's rows of each type.
        edges: for each relation and direction, its arrays as the module lists them.
    """

    parts: TypedParts
    number: int
    nodes: Mapping[str, Part]
    edges: Mapping[tuple[Key, bool], Edges]

    def check(self) -> None:
        """Checks what compiled loops rely on.

        Raises:
            StoreError: the structure is damaged; the message says where.
        """
        for part in self.nodes.values():
            part.check()
        for (key, backwards), edges in self.edges.items():
            where = str(self.parts.edges_folder(self.number, key, backwards))
            limit = self.parts.types[ends(key, backwards)[1]].num_nodes
            check_csr(where, "indptr", edges["indptr"], "indices", edges["indices"], limit)


def ends(key: Key, backwards: bool) -> tuple[str, str]:
    """Returns the types that receive and send in one direction of a relation."""
    return (key[0], key[2]) if backwards else (key[2], key[0])


def edges_name(place: int, backwards: bool) -> str:
    """Returns the name of the folder of one direction of a relation."""
    return f"relation-{place}{'-back' if backwards else ''}"


def is_typed_parts(path: Path) -> bool:
    """Returns whether `path` is a folder that looks like a typed store in parts."""
    return (path / MANIFEST).is_file()


def read_typed_parts(path: Path) -> TypedParts:
    """Reads `typed-parts.json`, and no part.

    Raises:
        StoreError: the folder has none, or it is damaged.
    """
    values = read_description(path, MANIFEST, KIND, MARK, limit=MANIFEST_BYTES)
    file, name, build = path / MANIFEST, values.get("name"), values.get("build")
    if not isinstance(name, str) or not isinstance(build, str) or values.get("order") not in ORDERS:
        raise StoreError(f"{file}: lacks a name, a build or a known order")
    if not re.fullmatch(r"[0-9a-f]{32}", build):
        raise StoreError(f"{file}: build must be 32 hex digits; got {build[:40]!r}")
    types: dict[str, Parts] = {}
    featured = set()
    for place, one in enumerate(_listed(file, values, "types")):
        kind, about = _parts(path, place, one, build, values["order"])
        types[kind] = about
        if one.get("features"):
            featured.add(kind)
    if not types or len({len(one) for one in types.values()}) != 1:
        raise StoreError(f"{file}: its types must have as many ranges as there are parts")
    relations: dict[Key, PartsRelation] = {}
    digests: dict[tuple[Key, bool], tuple[str, ...]] = {}
    for one in _listed(file, values, "relations"):
        relation = _relation(file, one, types)
        relations[relation.key] = relation
        given = one.get("sha256")
        both = given if isinstance(given, list) else []
        if len(both) != len(relation.backwards):
            raise StoreError(f"{file}: relation {':'.join(relation.key)} lacks checksums")
        for backwards, sums in zip(relation.backwards, both, strict=True):
            count = len(types[relation.key[0]])
            digests[relation.key, backwards] = _digests(file, sums, count)
    named, source = (path, name[:200], build, values["order"]), Source.read(file, values)
    return TypedParts(*named, types, frozenset(featured), relations, digests, source)


def open_typed_part(path: Path, number: int) -> TypedPart:
    """Maps one part; no other part needs to be there.

    Raises:
        StoreError: the part is missing, damaged or of another build.
    """
    parts = read_typed_parts(path)
    nodes = {name: part_of(one, number) for name, one in parts.types.items()}
    edges = {one: _open_edges(parts, number, *one)[0] for one in parts.digests}
    return TypedPart(parts, number, nodes, edges)


def verify_typed_part(
    path: Path, number: int, on_array: Callable[[str, int], None] = lambda *_: None
) -> TypedPart:
    """Opens a part, compares every byte with its checksums, and scans its structure.

    `on_array` is called after each array with its folder and name, and its size in bytes.

    Raises:
        StoreError: the part is missing, damaged or of another build.
    """
    part = open_typed_part(path, number)
    for parts in part.parts.types.values():

        def seen(array: str, size: int, within: str = parts.within) -> None:
            on_array(f"{within}/{array}", size)

        verified(parts, number, seen)
    for key, backwards in part.edges:
        folder = part.parts.edges_folder(number, key, backwards)

        def seen(array: str, size: int, within: str = folder.name) -> None:
            on_array(f"{within}/{array}", size)

        verify_arrays(folder, _open_edges(part.parts, number, key, backwards)[1], seen)
    part.check()
    return part


def _open_edges(
    parts: TypedParts, number: int, key: Key, backwards: bool
) -> tuple[Edges, dict[str, Any]]:
    """Maps the edges of one direction; also returns what is said of their arrays."""
    folder = parts.edges_folder(number, key, backwards)
    receivers = parts.types[ends(key, backwards)[0]]
    digest = parts.digests[key, backwards][number]
    about = read_part_description(receivers, number, folder, digest).get("arrays")
    listed: dict[str, Any] = about if isinstance(about, dict) else {}
    check_arrays(folder / PART, listed, EDGE_DTYPES)
    relation, nodes = parts.relations[key], receivers.nodes(number)
    expected = {"indptr", "indices", "edge_ids"}
    expected |= {"edge_weight"} if relation.weighted else set()
    expected |= {"edge_features"} if relation.num_edge_features else set()
    if set(listed) != expected:
        raise StoreError(f"{folder / PART}: must list the arrays {', '.join(sorted(expected))}")
    arrays = {name: map_array(folder, name, one, PART) for name, one in listed.items()}
    entries = len(arrays["indices"])
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(expected, (entries,))
    shapes["indptr"] = (nodes.stop - nodes.start + 1,)
    if relation.num_edge_features:
        shapes["edge_features"] = (entries, relation.num_edge_features)
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise StoreError(f"{folder}: {name} has shape {array.shape}; expected {shapes[name]}")
    return arrays, listed


def _listed(file: Path, values: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = values.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise StoreError(f"{file}: must list {key}")
    return found


def _parts(
    path: Path, place: int, one: Mapping[str, Any], build: str, order: str
) -> tuple[str, Parts]:
    """Returns the name of a type and its ranges."""
    file, name, given = path / MANIFEST, one.get("name"), one.get("starts")
    starts = given if isinstance(given, list) else []
    require_count(file, f"num_features of type {place}", one.get("num_features"))
    for start in starts:
        require_count(file, f"a start of type {place}", start)
    rising = all(a <= b for a, b in pairwise(starts))
    ranges = 2 <= len(starts) <= MOST_PARTS + 1 and starts[0] == 0 < starts[-1]
    if not isinstance(name, str) or not rising or not ranges:
        raise StoreError(f"{file}: type {place} lacks a name or ranges that follow one another")
    digests = _digests(file, one.get("sha256"), len(starts) - 1)
    numbers = (0, one["num_features"], 0)
    within, ranged = f"nodes-{place}", np.array(starts, dtype=np.int64)
    return name, Parts(path, name, build, order, ranged, *numbers, digests, within)


def _relation(file: Path, one: Mapping[str, Any], types: Mapping[str, Parts]) -> PartsRelation:
    key = one.get("key")
    if not isinstance(key, list) or len(key) != 3 or not all(isinstance(end, str) for end in key):
        raise StoreError(f"{file}: a relation lacks its key")
    said = ":".join(key)
    if key[0] not in types or key[2] not in types:
        raise StoreError(f"{file}: relation {said} is between types that are not listed")
    undirected, weighted = one.get("undirected"), one.get("weighted")
    if type(undirected) is not bool or type(weighted) is not bool:
        raise StoreError(f"{file}: relation {said} lacks undirected or weighted")
    counts = ("num_edge_features", "num_edges", "cut_edges", "self_loops_removed")
    for count in counts:
        require_count(file, f"{count} of relation {said}", one.get(count))
    numbers = (one[count] for count in counts)
    return PartsRelation((key[0], key[1], key[2]), undirected, weighted, *numbers)


def _digests(file: Path, given: Any, count: int) -> tuple[str, ...]:
    if not isinstance(given, list) or len(given) != count:
        raise StoreError(f"{file}: must have a checksum for each part")
    if not all(isinstance(one, str) for one in given):
        raise StoreError(f"{file}: a checksum is no text")
    return tuple(given)
