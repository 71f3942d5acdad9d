"""What `store.json` says: a graph on disk, its types, its relations and its parts.

    STORE/store.json                       types and relations, the parts and their ranges of nodes
    STORE/part-00000/part.json             the arrays of the first part, with their checksums
    STORE/part-00000/nodes-0/              the nodes of the first type: features, labels, ids
    STORE/part-00000/relation-0/           the edges of the first relation, by target
    STORE/part-00000/relation-0-back/      the same edges by source; see below
    STORE/nodes-0, relation-0, …           what turned tables into the features of nodes and edges

`graphcl.store.reader` lists the arrays. A store has one part or several. A part has a range of the
nodes of each type, in the numbering of the whole graph, and the edges that these nodes receive. A
process needs its own part and `store.json`. A part that is missing, damaged or of another build is
refused by name. Every build has an id, which follows from the checksums of what was built: equal
ids mean equal stores.

Edges of a relation that is not undirected are there by source as well, if the store was divided:
then both directions of an edge are with the node that receives.
"""

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from graphcl.arrays import Integers
from graphcl.errors import InvalidInputError, StoreError, demand, require
from graphcl.files.text import TEXT_BYTES, check_fields, read_text

FORMAT = 1
HEADER, PART = "store.json", "part.json"
HEADER_BYTES = 1 << 24  # 4,096 parts of a hundred types
ORDERS = ("neighbours", "hash", "as-is")
MASKS = ("train_mask", "val_mask", "test_mask")
MOST_PARTS = 4096  # so that `store.json` stays small
_STORE = {"name": str, "build": str, "order": str, "parts": tuple[str, ...], "source": dict}
_STORE |= {"types": tuple[dict, ...], "relations": tuple[dict, ...]}  # type: ignore[type-arg]
_TYPE = {
    "name": str,
    "num_features": int,
    "starts": tuple[int, ...],
    "class_names": tuple[str, ...],
}
Key = tuple[str, str, str]


class Source(NamedTuple):
    """What a store in parts was made of, and files beside the parts.

    Attributes:
        fingerprint: of the graph that was divided, by which a run knows it again.
        store: where that graph's store was; empty if it is gone, as after ``build --parts``.
        beside: files in the folder that belong to no part, and their checksums.
    """

    fingerprint: str = ""
    store: str = ""
    beside: Mapping[str, str] = {}

    @classmethod
    def read(cls, file: Path, values: Mapping[str, Any]) -> "Source":
        """Returns what a file says of it.

        Raises:
            StoreError: it is damaged.
        """
        types = {"fingerprint": str, "store": str, "beside": dict}
        about = check_fields(values, types, f"{file}: source", StoreError)
        for name, digest in about["beside"].items():
            demand(
                re.fullmatch(r"[a-z]+-[0-9]+/[a-z]+\.[a-z]+", name) and type(digest) is str,
                f"{file}: names files that are none of a store",
                StoreError,
            )
        return cls(about["fingerprint"][:64], about["store"][:4096], about["beside"])


NOTHING = Source()


@dataclass(frozen=True, eq=False)
class StoredType:
    """The nodes of a type, and which part has which.

    Attributes:
        path: the store.
        build: its id.
        name: of the type.
        num_features: 0 if the type has none.
        starts: int64, ``[parts + 1]``: part p has the nodes ``starts[p] … starts[p + 1] − 1``.
        class_names: empty if classes have none.
    """

    path: Path
    build: str
    name: str
    num_features: int
    starts: Integers
    class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all parts."""
        return int(self.starts[-1])

    def nodes(self, part: int) -> slice:
        """Returns the range of nodes of a part."""
        require(0 <= part < len(self), "Store", "part", f"in [0, {len(self)})", part)
        return slice(int(self.starts[part]), int(self.starts[part + 1]))

    def owner(self, nodes: Any) -> Any:
        """Returns the part of one node, or of each node of an array: a bisection of the ranges."""
        return np.searchsorted(self.starts, nodes, side="right") - 1


@dataclass(frozen=True)
class StoredRelation:
    """What is said of a relation.

    Attributes:
        key: source type, name and target type.
        undirected: whether both directions are one.
        both: whether its edges are there by source, too.
        weighted: whether edges have weights.
        num_edge_features: the width of their vectors, or 0.
        num_edges: how many; each undirected edge counts once.
        cut_edges: how many have their ends in two parts.
        self_loops_removed: number of self-loops in the input.
    """

    key: Key
    undirected: bool
    both: bool
    weighted: bool
    num_edge_features: int
    num_edges: int
    cut_edges: int = 0
    self_loops_removed: int = 0

    @property
    def backwards(self) -> tuple[bool, ...]:
        """The directions that are kept."""
        return (False, True) if self.both else (False,)


@dataclass(frozen=True, eq=False)
class Store:
    """A graph on disk, without its arrays.

    Attributes:
        path: the folder.
        name: the graph's name.
        build: the id of the build, 32 hex digits.
        order: how nodes were ordered for the parts: one of `ORDERS`.
        types: by their names.
        relations: by their keys.
        digests: the checksum of each part's `part.json`.
        source: what was divided.
    """

    path: Path
    name: str
    build: str
    order: str
    types: Mapping[str, StoredType]
    relations: Mapping[Key, StoredRelation]
    digests: tuple[str, ...]
    source: Source = NOTHING

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def is_plain(self) -> bool:
        """Whether it is the paper's graph: one type with features, one undirected relation."""
        return is_plain(self.types.values(), self.relations.values())

    @property
    def is_divided(self) -> bool:
        """Whether the store was divided, perhaps into one part; it has both directions then."""
        return bool(self.source.fingerprint)

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
        return sum(one.num_features for one in self.types.values())

    @property
    def cut_edges(self) -> int:
        """How many edges have their ends in two parts."""
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

    def part_folder(self, number: int) -> Path:
        """Returns the folder of a part."""
        return self.path / part_name(number)

    def nodes_folder(self, number: int, name: str) -> Path:
        """Returns where a part has the nodes of a type."""
        return self.part_folder(number) / nodes_name(list(self.types).index(name))

    def edges_folder(self, number: int, key: Key, backwards: bool = False) -> Path:
        """Returns where a part has one direction of a relation."""
        place = list(self.relations).index(key)
        return self.part_folder(number) / edges_name(place, backwards)


def is_plain(types: Collection[Any], relations: Collection[Any]) -> bool:
    """Returns whether there is one type with features, and one undirected relation without any."""
    if len(types) != 1 or len(relations) != 1:
        return False
    (nodes,), (edges,) = types, relations
    return bool(edges.undirected and not edges.num_edge_features and nodes.num_features > 0)


def part_name(part: int) -> str:
    """Returns the name of a part's folder, and of what is made of the part."""
    return f"part-{part:05d}"


def nodes_name(place: int) -> str:
    """Returns the name of the folder of a type."""
    return f"nodes-{place}"


def edges_name(place: int, backwards: bool = False) -> str:
    """Returns the name of the folder of one direction of a relation."""
    return f"relation-{place}{'-back' if backwards else ''}"


def ends(key: Key, backwards: bool) -> tuple[str, str]:
    """Returns the types that receive and send in one direction of a relation."""
    return (key[0], key[2]) if backwards else (key[2], key[0])


def is_store(path: Path) -> bool:
    """Returns whether `path` is a folder that looks like a store."""
    return (path / HEADER).is_file()


def is_parts(path: Path) -> bool:
    """Returns whether `path` is a store in several parts; a damaged one is not."""
    store = _known_store(path)
    return store is not None and len(store) > 1


def is_divided(path: Path) -> bool:
    """Returns whether `path` is a store that was divided, perhaps into one part."""
    store = _known_store(path)
    return store is not None and store.is_divided


def _known_store(path: Path) -> Store | None:
    with suppress(StoreError):  # who opens it says what is wrong
        return read_store(path) if is_store(path) else None
    return None


def read_store(path: Path) -> Store:
    """Reads `store.json`, and no part.

    Raises:
        StoreError: the folder has none, or it is damaged.
    """
    values = read_description(path, HEADER, "store", "graphcl_store", limit=HEADER_BYTES)
    file = path / HEADER
    about = check_fields(values, _STORE, str(file), StoreError)
    build, order, digests = about["build"], about["order"], about["parts"]
    demand(
        re.fullmatch(r"[0-9a-f]{32}", build) and order in ORDERS,
        f"{file}: build must be 32 hex digits, and order one of {ORDERS}",
        StoreError,
    )
    demand(
        1 <= len(digests) <= MOST_PARTS, f"{file}: must list 1 to {MOST_PARTS} parts", StoreError
    )
    listed = [_type(path, at, one, build, len(digests)) for at, one in enumerate(about["types"])]
    types = {one.name: one for one in listed}
    demand(
        types and len(types) == len(listed),
        f"{file}: must list at least one type, and each once",
        StoreError,
    )
    edges = [_relation(file, at, one, types) for at, one in enumerate(about["relations"])]
    relations = {one.key: one for one in edges}
    demand(len(relations) == len(edges), f"{file}: must list each relation once", StoreError)
    for key, one in relations.items():
        if len(digests) > 1 and not (one.undirected or one.both):
            said = ":".join(key)
            raise StoreError(f"{file}: relation {said} lacks its edges by source, which parts have")
    source = Source.read(file, about["source"])
    found = Store(path, about["name"][:200], build, order, types, relations, digests, source)
    if len(types) == 1 and min(found.sizes) < 1:  # of several types, a part may have none
        raise StoreError(f"{file}: part {found.sizes.index(0)} has no nodes")
    return found


def write_header(store: Store, folder: Path) -> None:
    """Writes `store.json` into a folder that may yet have another name."""
    types = [
        {
            "name": one.name,
            "num_features": one.num_features,
            "starts": one.starts.tolist(),
            "class_names": list(one.class_names),
        }
        for one in store.types.values()
    ]
    values = {"graphcl_store": FORMAT, "name": store.name, "build": store.build}
    values |= {"order": store.order, "source": store.source._asdict(), "types": types}
    values |= {"relations": [vars(one) for one in store.relations.values()]}
    values |= {"parts": list(store.digests)}
    (folder / HEADER).write_text(json.dumps(values, indent=1, allow_nan=False) + "\n")


def read_description(
    path: Path,
    file: str,
    kind: str,
    mark: str,
    error: type[InvalidInputError] = StoreError,
    *,
    limit: int = TEXT_BYTES,
) -> dict[str, Any]:
    """Reads the JSON file that describes a `kind` of folder; its key `mark` is the format.

    Raises:
        InvalidInputError: of the type `error`: there is no such folder, or it is another kind.
    """
    demand(path.is_dir(), f"{path}: no such {kind}", error)
    try:
        values: dict[str, Any] = json.loads(read_text(path / file, error, limit=limit))
    except FileNotFoundError:
        raise error(f"{path}: not a {kind} (it has no {file})") from None
    except error:
        raise
    except (ValueError, RecursionError) as problem:
        raise error(f"{path / file}: not JSON ({problem})") from None
    demand(
        isinstance(values, dict) and mark in values,
        f"{path / file}: does not describe a {kind}",
        error,
    )
    demand(
        values[mark] == FORMAT,
        f"{path}: {kind} format {values[mark]!r}; this version reads format {FORMAT}",
        error,
    )
    return values


def _type(path: Path, place: int, one: Any, build: str, parts: int) -> StoredType:
    where = f"{path / HEADER}: type {place}"
    about = check_fields(one, _TYPE, where, StoreError)
    starts = about.pop("starts")
    demand(
        len(starts) == parts + 1 and starts[0] == 0 and list(starts) == sorted(starts),
        f"{where} lacks a range of nodes for each part",
        StoreError,
    )
    demand(starts[-1], f"{where} must have at least one node", StoreError)
    return StoredType(path, build, starts=np.array(starts, dtype=np.int64), **about)


def _relation(file: Path, place: int, one: Any, types: Mapping[str, StoredType]) -> StoredRelation:
    where = f"{file}: relation {place}"
    found = StoredRelation(**check_fields(one, get_type_hints(StoredRelation), where, StoreError))
    said = f"{file}: relation {':'.join(found.key)}"
    demand(
        found.key[0] in types and found.key[2] in types,
        f"{said} is between types that are not listed",
        StoreError,
    )
    demand(
        not found.undirected or (not found.both and found.key[0] == found.key[2]),
        f"{said} cannot be undirected",
        StoreError,
    )
    return found
