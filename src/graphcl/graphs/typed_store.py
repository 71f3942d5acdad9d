"""Typed graphs on disk: a folder with a plain store per node type and a few arrays per relation.

    typed.json              the names of types and relations, in order
    nodes-0, nodes-1, …     the nodes of each type, a store without edges (`graphcl.store.reader`)
    relation-0, …           indptr, indices [, edge_weight, edge_features, edge_ids] as `.npy` files

Arrays are mapped, not loaded. The JSON names no files. What compiled loops rely on is checked when
a store is opened, in blocks.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphcl.errors import StoreError
from graphcl.files.arrays import map_npy
from graphcl.files.atomic import check_new_folder, whole_folder
from graphcl.files.text import read_text
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Key, Relation
from graphcl.store import reader, writer
from graphcl.store.reader import MASKS

if TYPE_CHECKING:
    from graphcl.graphs.graph import Graph

FORMAT = 1
HEADER = "typed.json"
DTYPES = {
    "indptr": np.int64,
    "indices": np.int64,
    "edge_weight": np.float32,
    "edge_features": np.float32,
    "edge_ids": np.int64,
}
_BLOCK = 1 << 22  # entries that are checked at a time


def save_typed(
    graph: "Graph", path: Path, *, features: str = "float32", overwrite: bool = False
) -> None:
    """Writes a graph with types as a folder, which appears complete or not at all.

    Raises:
        StoreError: something is there.
    """
    check_new_folder(path, "store", HEADER, StoreError, overwrite=overwrite)
    with whole_folder(path) as staging:
        header = Header(graph.name)
        for name, nodes in graph.nodes.items():
            folder = header.add_type(staging, name, nodes.x is not None)
            writer.write_store(folder, fields_of(nodes), features=features)
        for key, relation in graph.relations.items():
            arrays = {part: getattr(relation, part) for part in DTYPES}
            held = {part: array for part, array in arrays.items() if array is not None}
            folder = header.add_relation(staging, key, held, relation.self_loops_removed)
            for part, array in held.items():
                np.save(folder / f"{part}.npy", array)
        header.write(staging)


@dataclass
class Header:
    """What `typed.json` says; its parts are added in the order of the store's folders.

    Attributes:
        name: of the graph.
        types: the names of the types, and whether they have features.
        relations: the keys of the relations, and which arrays they have.
    """

    name: str
    types: list[dict[str, Any]] = field(default_factory=list)
    relations: list[dict[str, Any]] = field(default_factory=list)

    def add_type(self, store: Path, name: str, features: bool) -> Path:
        """Adds a type, and returns the folder of its nodes, which is not there yet."""
        self.types.append({"name": name, "features": features})
        return store / f"nodes-{len(self.types) - 1}"

    def add_relation(
        self, store: Path, key: Key, arrays: Iterable[str], self_loops_removed: int
    ) -> Path:
        """Adds a relation, and returns its folder, which is there."""
        about = {"key": list(key), "arrays": list(arrays), "self_loops_removed": self_loops_removed}
        self.relations.append(about)
        folder = store / f"relation-{len(self.relations) - 1}"
        folder.mkdir(exist_ok=True)
        return folder

    def write(self, store: Path) -> None:
        """Writes the file."""
        about = {"format": FORMAT, **asdict(self)}
        (store / HEADER).write_text(json.dumps(about, indent=1) + "\n")


def fields_of(nodes: Nodes) -> dict[str, Any]:
    """Returns the nodes of a type as the fields of a store without edges.

    A type without features has one column of zeros there.
    """
    x = np.zeros((nodes.num_nodes, 1), np.float32) if nodes.x is None else nodes.x
    none = {"indptr": np.zeros(nodes.num_nodes + 1, np.int64), "indices": np.zeros(0, np.int64)}
    return {**vars(nodes), **none, "x": x, "edge_weight": None, "self_loops_removed": 0}


def open_typed(
    path: Path, *, verify: bool = False
) -> tuple[dict[str, Nodes], dict[Key, Relation], str]:
    """Maps a graph that `save_typed` wrote: its types, its relations and its name.

    Raises:
        StoreError: a file is missing, or does not match the others.
    """
    about = read_typed_header(path)
    nodes: dict[str, Nodes] = {}
    for number, one in enumerate(about["types"]):
        folder = path / f"nodes-{number}"
        if verify:
            reader.verify_store(folder)
        fields = reader.open_store(folder)
        reader.check_structure(str(folder), fields)
        nodes[one["name"]] = nodes_of(fields, one["name"], features=one["features"])
    sizes = {name: one.num_nodes for name, one in nodes.items()}
    relations: dict[Key, Relation] = {}
    for number, one in enumerate(about["relations"]):
        relation = relation_of(path / f"relation-{number}", one, sizes)
        relations[relation.key] = relation
    return nodes, relations, about["name"]


def is_typed_store(path: Path) -> bool:
    """Returns whether `path` is a folder that looks like a typed store."""
    return (path / HEADER).is_file()


def read_typed_header(path: Path) -> dict[str, Any]:
    """Reads and checks `typed.json`.

    Raises:
        StoreError: it is missing or damaged.
    """
    where = path / HEADER
    try:
        about = json.loads(read_text(where, StoreError))
        right = about["format"] == FORMAT and isinstance(about["name"], str)
        for one in about["types"]:
            right = right and type(one["name"]) is str and type(one["features"]) is bool
        for one in about["relations"]:
            right = right and len(one["key"]) == 3 and all(type(end) is str for end in one["key"])
            right = right and set(one["arrays"]) <= set(DTYPES)
            right = right and type(one["self_loops_removed"]) is int
    except FileNotFoundError:
        raise StoreError(f"{path}: not a typed store (it has no {HEADER})") from None
    except StoreError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{where}: damaged ({error})") from None
    if not right:
        raise StoreError(f"{where}: damaged, or of another format than {FORMAT}")
    found: dict[str, Any] = about
    return found


def nodes_of(fields: Mapping[str, Any], name: str, *, features: bool) -> Nodes:
    """Returns the nodes of a store as those of a type, with its features or without."""
    ids = fields.get("node_ids")
    return Nodes(
        name,
        int(fields["x"].shape[0]),
        fields["x"] if features else None,
        fields.get("y"),
        **{mask: fields.get(mask) for mask in MASKS},
        node_ids=None if ids is None else np.asarray(ids[:]),
        class_names=fields.get("class_names", ()),
    )


def relation_of(folder: Path, about: Mapping[str, Any], sizes: Mapping[str, int]) -> Relation:
    """Maps the edges of a relation, and checks them; `sizes` has the nodes of each type.

    Raises:
        StoreError: an array is missing or damaged.
    """
    source, name, target = about["key"]
    if (
        source not in sizes
        or target not in sizes
        or not {"indptr", "indices"} <= {*about["arrays"]}
    ):
        raise StoreError(f"{folder}: its types or arrays are missing from {HEADER}")
    arrays: dict[str, Any] = {}
    for part in about["arrays"]:
        try:
            arrays[part] = map_npy(folder / f"{part}.npy", StoreError)
        except FileNotFoundError:
            raise StoreError(f"{folder / part}.npy: missing") from None
        if arrays[part].dtype != DTYPES[part]:
            raise StoreError(f"{folder / part}.npy: holds {arrays[part].dtype}")
    _check(folder, arrays, sizes[source], sizes[target])
    return Relation(
        source,
        name,
        target,
        **arrays,
        undirected="edge_ids" in arrays,
        self_loops_removed=int(about["self_loops_removed"]),
    )


def _check(folder: Path, arrays: dict[str, Any], sources: int, targets: int) -> None:
    """Refuses arrays that would lead a compiled loop out of bounds."""
    indptr, indices = arrays["indptr"], arrays["indices"]
    entries = len(indices)
    right = indptr.shape == (targets + 1,) and indices.ndim == 1
    right = right and indptr[0] == 0 and indptr[-1] == entries
    right = right and not (np.diff(indptr) < 0).any()
    for part, array in arrays.items():
        wide = 2 if part == "edge_features" else 1
        if part != "indptr":
            right = right and array.ndim == wide and len(array) == entries
    if right:
        limits = {"indices": sources, "edge_ids": entries // 2}
        for part, limit in limits.items():
            for start in range(0, entries if part in arrays else 0, _BLOCK):
                block = arrays[part][start : start + _BLOCK]
                right = right and bool(((block >= 0) & (block < limit)).all())
    if not right:
        raise StoreError(f"{folder}: damaged; its arrays do not form the edges of a relation")
