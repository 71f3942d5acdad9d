"""The nodes of a graph in parts, without its edges and features: ids, labels, split and degrees.

All of it is in memory, some 20 bytes per node and the ids; a graph of 10^8 nodes takes 3 GB. This
module imports no torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphcl.errors import RunError
from graphcl.graphs.nodes import Nodes
from graphcl.partitioned.embeddings import ShardedEmbeddings
from graphcl.store.header import MASKS, StoredType, ends, read_store
from graphcl.store.joining import columns
from graphcl.store.reader import open_part


@dataclass(frozen=True, eq=False)
class PartsNodes(Nodes):
    """The nodes of a type of a store in parts, in the order of the parts, with degrees.

    Attributes:
        parts: which part has which.
    """

    parts: StoredType | None = None


def read_parts_nodes(path: Path, name: str | None = None) -> PartsNodes:
    """Reads the nodes of a type, or of the only one, of all parts; a degree counts all relations.

    Raises:
        RunError: there is no such type.
        StoreError: a part is missing, damaged or of another build.
    """
    store = read_store(path)
    if name is None:
        (name,) = store.types
    if name not in store.types:
        known = ", ".join(store.types)
        raise RunError(f"{path}: has no type {name!r}; its types: {known}")
    about = store.types[name]
    parts = [open_part(store, number) for number in range(len(store))]
    degree = np.zeros(about.num_nodes, np.int32)
    for part in parts:
        for (key, backwards), edges in part.edges.items():
            if ends(key, backwards)[0] == name:
                degree[part.nodes[name].nodes] += np.diff(edges["indptr"]).astype(np.int32)
    joined = dict(columns([part.nodes[name] for part in parts], ("y", *MASKS, "node_ids")))
    more: dict[str, Any] = {"class_names": about.class_names, "degree": degree, "parts": about}
    return PartsNodes(name, about.num_nodes, **joined, **more)


def check_same_build(shards: ShardedEmbeddings, nodes: PartsNodes) -> None:
    """Refuses shards that are not of these parts.

    Raises:
        RunError: they are of another build.
    """
    parts = nodes.parts
    if parts is None or shards.build != parts.build or len(shards) != parts.num_nodes:
        assert parts is not None
        raise RunError(
            f"{shards.path}: embeddings of the build {shards.build}; {parts.path} has the build "
            f"{parts.build}"
        )
