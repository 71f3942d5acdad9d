"""The nodes of a graph in parts, without its edges and features: ids, labels, split and degrees.

All of it is in memory, some 20 bytes per node and the ids; a graph of 10^8 nodes takes 3 GB. This
module imports no torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import RunError
from graphcl.partitioned.embeddings import ShardedEmbeddings
from graphcl.store.columns import Names
from graphcl.store.header import StoredType, ends, read_store
from graphcl.store.joining import stacked
from graphcl.store.reader import MASKS, open_part

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class PartsNodes:
    """The nodes of a graph in parts, in their order.

    Attributes:
        parts: the graph.
        node_ids: None where nodes have none; they are numbers then.
        y: labels, ``[nodes]`` or ``[nodes, labels]``, or None.
        split: per node 0 none, 1 train, 2 validation, 3 test; or None without a split.
        degree: neighbours of each node.
        class_names: empty if classes have none.
    """

    parts: StoredType
    node_ids: Array | Names | None
    y: Array | None
    split: npt.NDArray[np.uint8] | None
    degree: npt.NDArray[np.int32]
    class_names: tuple[str, ...]

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.parts.num_nodes


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
    ids, y, degree = [], [], np.zeros(about.num_nodes, np.int32)
    split, masked = np.zeros(about.num_nodes, np.uint8), False
    for number in range(len(store)):
        part = open_part(store, number)  # mapped, and closed after each part
        fields, nodes = part.nodes[name].fields, part.nodes[name].nodes
        for (key, backwards), edges in part.edges.items():
            if ends(key, backwards)[0] == name:
                degree[nodes] += np.diff(edges["indptr"]).astype(np.int32)
        for code, mask in enumerate(MASKS, 1):
            if mask in fields:
                split[nodes][np.asarray(fields[mask])] = code
                masked = True
        if "node_ids" in fields:
            ids.append(_held(fields["node_ids"]))
        if "y" in fields:
            y.append(np.array(fields["y"]))
    labels = np.concatenate(y) if y else None
    kept = split if masked else None
    return PartsNodes(about, stacked(ids) if ids else None, labels, kept, degree, about.class_names)


def check_same_build(shards: ShardedEmbeddings, parts: StoredType) -> None:
    """Refuses shards that are not of these parts.

    Raises:
        RunError: they are of another build.
    """
    if shards.build != parts.build or len(shards) != parts.num_nodes:
        raise RunError(
            f"{shards.path}: embeddings of the build {shards.build}; {parts.path} has the build "
            f"{parts.build}"
        )


def _held(ids: Any) -> Any:
    if isinstance(ids, Names):
        return Names(np.array(ids.offsets), np.array(ids.text))
    return np.array(ids)
