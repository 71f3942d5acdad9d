"""What a run keeps of its nodes, type by type, and of the tables that they came from.

The folder of a type holds `embeddings.npy`, `nodes.npz`, the preparation of the type's table if it
was read from one, and the index that `graphcl neighbors` builds. A plain graph has one type, and
its folder is the run itself; those of a typed graph are ``RUN/types/0-author`` and so on.
``RUN/relations/0-writes`` holds the preparation of a list of edges whose columns became edge
features. `schema.json` has the types and relations in order.

`nodes.npz` has ids as they came in, labels, split and degrees, nothing pickled, so that a neighbour
can be named and a report drawn after the graph itself is gone. A version that an update made has
its graph instead. Text ids lie as one run of UTF-8 bytes with offsets: NumPy's own text arrays
would give every id the room of the longest. Imports no torch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphcl.arrays import Array
from graphcl.errors import RunError, check_known
from graphcl.files.arrays import read_npz, write_npy
from graphcl.files.atomic import whole_file
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import NODE, Key
from graphcl.runs import files as runs
from graphcl.runs import versions
from graphcl.store.columns import Names
from graphcl.store.header import MASKS, edges_name, is_store, nodes_name, read_store

if TYPE_CHECKING:  # reading a run needs no graph and no tables, and so none of their imports
    from graphcl.graphs.collection import GraphCollection
    from graphcl.graphs.graph import Graph
    from graphcl.tabular.options import TableOptions

NODES, TYPES, RELATIONS = "nodes.npz", "types", "relations"
SPLITS = ("", "train", "validation", "test")


def run_types(run: Path) -> list[str]:
    """Returns the types of the graph that a run was trained on; none for a plain graph.

    Raises:
        RunError: `schema.json` is damaged.
    """
    schema = runs.read_schema(run)
    listed = schema.get("types", [])
    known = isinstance(listed, list) and all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in listed
    )
    if not known or (schema and not listed):
        raise RunError(f"{run / runs.SCHEMA}: damaged")
    return [one["name"] for one in listed]


def plain_names(run: Path) -> tuple[str, str]:
    """Returns what a plain graph calls its nodes and its edges: in its store, or in its tables."""
    found, given = ["node", "edge"], {}
    with suppress(ValueError):  # there may be no origin, or a damaged one
        origin = runs.read_config(run, baselines=True).origin
        store = versions.own_graph(run) or Path(origin.graph)
        if origin.graph and is_store(store) and read_store(store).is_plain:
            (key,) = read_store(store).relations
            return key[0], key[1]
        given = json.loads(origin.tables or "{}")
    for place, option in enumerate(("nodes", "edges")):
        tables = given.get(option) if isinstance(given, dict) else None
        if isinstance(tables, dict) and len(tables) == 1:
            only = next(iter(tables))
            found[place] = only.split(":")[1] if only.count(":") == 2 else only
    return found[0], found[1]


def type_folder(run: Path, name: str | None) -> Path:
    """Returns the folder of a type in a run; that of a plain graph's nodes is the run itself.

    Raises:
        RunError: there is no such type; the message lists those that are there.
    """
    names = run_types(run)
    if name is None or (not names and name == plain_names(run)[0]):
        return run
    if not names:
        raise RunError(f"{run}: was trained on a plain graph, which has no types; got {name!r}")
    check_known(name, names, what=f"{run}: no type", listed="its types:", error=RunError)
    return run / TYPES / _folder(names.index(name), name)


def _folder(place: int, name: str) -> str:
    # The name is somebody's: nothing of it may lead elsewhere.
    return f"{place}-{re.sub('[^A-Za-z0-9_-]', '_', name)[:40]}"


def lacks_embeddings(run: Path) -> bool:
    """Returns whether a run of GraphCL was trained over parts, and keeps no embeddings yet."""
    config = runs.read_config(run, baselines=True)
    folders = [type_folder(run, name) for name in run_types(run)] or [run]
    return bool(config.origin.build) and not all(map(runs.has_embeddings, folders))


def write_types(folder: Path, graph: "Graph | GraphCollection", z: Any) -> None:
    """Writes embeddings, nodes and preparations into a folder that is not yet a run.

    Of a typed graph, `z` are embeddings by type, and `folder` has its `schema.json` already.
    """
    for name, rows in (z if isinstance(z, Mapping) else {None: z}).items():
        own = type_folder(folder, name)
        own.mkdir(parents=True, exist_ok=True)
        write_npy(own / runs.EMBEDDINGS, rows)
        write_nodes(own, describe_nodes(graph, name))
    if hasattr(graph, "graphs"):  # several graphs come from no table
        return
    tables: list[Any] = [*graph.nodes.values(), *graph.relations.values()]
    _write_preparations(folder, [*graph.relations], [one.preparation for one in tables])


def _write_preparations(run: Path, relations: Sequence[Key], found: Sequence[Any]) -> None:
    """Writes the preparations of all types, then those of relations, into their folders."""
    from graphcl.tabular.preparation import write_preparation

    listed = [relation_folder(run, place, key[1]) for place, key in enumerate(relations)]
    folders = [*([type_folder(run, name) for name in run_types(run)] or [run]), *listed]
    for own, preparation in zip(folders, found, strict=True):
        if preparation is not None:
            own.mkdir(parents=True, exist_ok=True)
            write_preparation(own, preparation)


def write_parted_types(folder: Path, parts: Path) -> None:
    """Writes a folder for each type, with the preparations that a store in parts keeps.

    There are no embeddings in them. Of a typed graph, `folder` has its `schema.json` already.
    """
    from graphcl.tabular.preparation import read_preparation

    store = read_store(parts)
    relations = [] if store.is_plain else [*store.relations]
    sources = [parts / nodes_name(place) for place in range(len(store.types))]
    sources += [parts / edges_name(place) for place in range(len(relations))]
    for name in run_types(folder):
        type_folder(folder, name).mkdir(parents=True, exist_ok=True)
    _write_preparations(folder, relations, [read_preparation(source) for source in sources])


def relation_folder(run: Path, place: int, name: str) -> Path:
    """Returns the folder with the preparation of a list of edges."""
    return run / RELATIONS / _folder(place, name)


def trained_tables(run: Path) -> "TableOptions | None":
    """Returns how the tables of a run were read, and what became of their columns.

    None if it was trained on no tables, and on no store that was built from some.

    Raises:
        RunError: what the run keeps of them is damaged.
    """
    from graphcl.tabular.options import TableOptions
    from graphcl.tabular.preparation import read_preparation

    config = runs.read_config(run, baselines=True)
    own, types = read_preparation(run), run_types(run)
    prepared: dict[str, Any] = {}
    if types:
        found = {name: read_preparation(type_folder(run, name)) for name in types}
        of_edges = {}
        listed = runs.read_schema(run).get("relations", [])
        known = isinstance(listed, list) and all(isinstance(one, dict) for one in listed)
        for place, one in enumerate(listed if known else []):
            key = ":".join(str(one.get(part)) for part in ("source", "name", "target"))
            of_edges[key] = read_preparation(relation_folder(run, place, str(one.get("name"))))
        for kind, each in (("preparations", found), ("edge_preparations", of_edges)):
            prepared[kind] = {name: one for name, one in each.items() if one is not None}
    if not config.origin.tables and own is None and not any(prepared.values()):
        return None
    try:
        options = TableOptions.from_record(config.origin.tables or "{}", own, **prepared)
        if types == [NODE] and not options.is_typed:  # its edges have ages; its table has no type
            options = replace(options, preparation=prepared["preparations"].get(NODE))
        return options
    except ValueError:
        raise RunError(f"{run / runs.CONFIG}: [run] tables is damaged") from None


def describe_nodes(graph: "Graph | GraphCollection", node_type: str | None = None) -> Nodes:
    """Returns what a run keeps of the nodes of a graph, or of several one below the other.

    Args:
        graph: one graph, or several.
        node_type: of which type; None is the only one.
    """
    from graphcl.graphs.collection import GraphCollection

    if not isinstance(graph, GraphCollection):
        nodes = graph.only_type if node_type is None else graph.type(node_type)
        degree = graph.degrees(nodes.name)
        return replace(nodes, x=None, splits=None, preparation=None, degree=degree)
    return Nodes(
        NODE,
        graph.num_nodes,
        y=graph.y,
        **_masks(np.repeat(np.arange(1, 4), graph.split_nodes)),
        node_ids=graph.node_ids,
        class_names=graph.train[0].class_names,
        degree=np.concatenate([one.degrees() for one in graph.graphs]),
    )


def _masks(codes: Array | None) -> dict[str, Any]:
    if codes is None:
        return {}
    return {mask: codes == code for code, mask in enumerate(MASKS, 1)}


def is_labelled(nodes: Nodes) -> bool:
    """Returns whether nodes have labels."""
    return nodes.y is not None


def has_all(nodes: Nodes, wanted: Any) -> bool:
    """Returns whether some ids are among those of the nodes."""
    given = [wanted] if isinstance(wanted, str) or np.ndim(wanted) == 0 else wanted
    return set(map(str, given)) <= set(map(str, nodes.ids.tolist()))


def write_nodes(folder: Path, nodes: Nodes) -> None:
    """Writes `nodes.npz` into a run."""
    degree = np.zeros(nodes.num_nodes) if nodes.degree is None else nodes.degree
    arrays: dict[str, Array] = {"degree": degree.astype(np.int32), **_pack(nodes.ids)}
    if nodes.y is not None:
        single = nodes.y.ndim == 1
        kind = nodes.y.dtype if nodes.has_number else np.int64 if single else np.int8
        arrays["y" if single else "labels"] = nodes.y.astype(kind)
    codes = nodes.split_codes
    if codes is not None:
        arrays["split"] = codes
    if nodes.class_names:
        arrays |= _pack(np.array(nodes.class_names, dtype=object), "class")
    with whole_file(folder / NODES) as staging:
        np.savez(staging, allow_pickle=False, **arrays)


def read_nodes(run: Path, name: str | None = None) -> Nodes | None:
    """Returns the nodes of a run, or None where it keeps none, as `GraphCL.save` writes it.

    Args:
        run: its folder, or that of a version, whose nodes are those of its graph.
        name: of the type; None is the only one.

    Raises:
        RunError: the file is damaged, or its arrays do not fit each other.
    """
    if (store := versions.own_graph(run)) is not None:
        from graphcl.graphs.graph import Graph

        with versions.own_graph_read(run):
            graph = Graph.open(store)
        return describe_nodes(graph, name)
    path = type_folder(run, name) / NODES
    if not path.exists():
        return None
    arrays = read_npz(path, None, RunError)
    try:
        names = _unpack(arrays, "class") if "class_ends" in arrays else ()
        ids = arrays["ids"] if "ids" in arrays else _unpack(arrays)
        degree, y, split = arrays["degree"], arrays.get("y"), arrays.get("split")
    except (ValueError, KeyError) as error:
        raise RunError(f"{path}: damaged ({error})") from None
    if any(one is not None and one.shape != degree.shape for one in (ids, y, split)):
        raise RunError(f"{path}: its arrays differ in length")
    several = arrays.get("labels")
    if several is not None and (several.ndim != 2 or len(several) != len(degree)):
        raise RunError(f"{path}: its arrays differ in length")
    return Nodes(
        NODE,
        len(degree),
        y=several if y is None else y,
        **_masks(split),
        node_ids=ids,
        class_names=tuple(names),
        degree=degree,
    )


def _pack(ids: Any, name: str = "id") -> dict[str, Array]:
    if isinstance(ids, Names):  # they lie like this already
        start, text = int(ids.offsets[0]), np.asarray(ids.text)
        ends = np.asarray(ids.offsets[1:]) - start
        return {f"{name}_bytes": text[start : start + int(ends[-1])], f"{name}_ends": ends}
    if ids.dtype.kind in "iufb":
        return {"ids": ids}
    texts = [str(name).encode("utf-8", "surrogatepass") for name in ids.tolist()]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return {f"{name}_bytes": np.frombuffer(b"".join(texts), np.uint8), f"{name}_ends": ends}


def _unpack(arrays: dict[str, Array], name: str = "id") -> Array:
    blob, ends = arrays[f"{name}_bytes"].tobytes(), arrays[f"{name}_ends"].tolist()
    starts = [0, *ends[:-1]]
    names = [blob[a:b].decode("utf-8", "surrogatepass") for a, b in zip(starts, ends, strict=True)]
    unpacked = np.empty(len(names), dtype=object)  # in memory alone: no room for the longest
    unpacked[:] = names
    return unpacked
