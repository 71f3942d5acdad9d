"""Runs of typed graphs: a folder for each type of nodes, as a plain run is for its nodes.

``RUN/types/0-author`` holds `embeddings.npy` and `nodes.npz`, the preparation of the type's table
if it was read from one, and the index that `graphcl neighbors` builds. ``RUN/relations/0-writes``
holds the preparation of a list of edges whose columns became edge features. `schema.json` has the
types and relations in order. Imports no torch.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphcl.errors import RunError, suggestion
from graphcl.runs import files as runs
from graphcl.runs import versions
from graphcl.runs.nodes import describe_nodes, write_nodes
from graphcl.store.header import is_store, read_store

if TYPE_CHECKING:  # reading a run needs no graph, and so none of the imports of one
    from graphcl.graphs.graph import Graph
    from graphcl.tabular.preparation import Preparation

TYPES, RELATIONS = "types", "relations"


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


def type_folder(run: Path, name: str) -> Path:
    """Returns the folder of a type in a run.

    Raises:
        RunError: there is no such type; the message lists those that are there.
    """
    names = run_types(run)
    if not names and name == plain_names(run)[0]:
        return run
    if not names:
        raise RunError(f"{run}: was trained on a plain graph, which has no types; got {name!r}")
    if name not in names:
        near = suggestion(name, names)
        raise RunError(f"{run}: no type {name!r}; its types: {', '.join(names)}{near}")
    return run / TYPES / _folder(names.index(name), name)


def _folder(place: int, name: str) -> str:
    # The name is somebody's: nothing of it may lead elsewhere.
    return f"{place}-{re.sub('[^A-Za-z0-9_-]', '_', name)[:40]}"


def lacks_embeddings(run: Path) -> bool:
    """Returns whether a run of GraphCL was trained over parts, and keeps no embeddings yet."""
    config = runs.read_config(run, baselines=True)
    folders = [type_folder(run, name) for name in run_types(run)] or [run]
    return bool(config.origin.build) and not all(map(runs.has_embeddings, folders))


def write_types(folder: Path, graph: "Graph", z: Mapping[str, Any]) -> None:
    """Writes embeddings, nodes and preparations of all types into a folder that is not yet a run.

    `folder` has its `schema.json` already.
    """
    from graphcl.tabular.preparation import write_preparation

    for name in graph.nodes:
        own = type_folder(folder, name)
        own.mkdir(parents=True)
        np.save(own / runs.EMBEDDINGS, np.asarray(z[name]))
        write_nodes(own, describe_nodes(graph, name))
        preparation = graph.nodes[name].preparation
        if preparation is not None:
            write_preparation(own, preparation)
    for place, relation in enumerate(graph.relations.values()):
        if relation.preparation is not None:
            own = folder / RELATIONS / _folder(place, relation.name)
            own.mkdir(parents=True)
            write_preparation(own, relation.preparation)


def write_parted_types(folder: Path, parts: Path) -> None:
    """Writes a folder for each type, with the preparations that a typed store in parts keeps.

    There are no embeddings in them. `folder` has its `schema.json` already.
    """
    from graphcl.tabular.preparation import read_preparation, write_preparation

    listed = runs.read_schema(folder).get("relations", [])
    places = [
        (parts / f"nodes-{at}", type_folder(folder, name), True)
        for at, name in enumerate(run_types(folder))
    ]
    places += [
        (parts / f"relation-{at}", folder / RELATIONS / _folder(at, one["name"]), False)
        for at, one in enumerate(listed)
    ]
    for source, own, always in places:
        preparation = read_preparation(source)
        if always or preparation is not None:
            own.mkdir(parents=True)
        if preparation is not None:
            write_preparation(own, preparation)


def read_preparations(run: Path) -> "dict[str, Preparation]":
    """Returns the preparation of each type whose features come from a table."""
    from graphcl.tabular.preparation import read_preparation

    found = {name: read_preparation(type_folder(run, name)) for name in run_types(run)}
    return {name: one for name, one in found.items() if one is not None}


def read_edge_preparations(run: Path) -> "dict[str, Preparation]":
    """Returns the preparation of each relation whose edge features come from a table.

    They are named ``source:name:target``.
    """
    from graphcl.tabular.preparation import read_preparation

    found = {}
    listed = runs.read_schema(run).get("relations", [])
    known = isinstance(listed, list) and all(isinstance(one, dict) for one in listed)
    for place, one in enumerate(listed if known else []):
        ends = [one.get(part) for part in ("source", "name", "target")]
        prepared = read_preparation(run / RELATIONS / _folder(place, str(ends[1])))
        if prepared is not None:
            found[":".join(map(str, ends))] = prepared
    return found
