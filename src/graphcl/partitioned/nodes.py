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
from graphcl.partitioned.embeddings import ShardedEmbeddings, join_names
from graphcl.store.columns import Names
from graphcl.store.parts import Parts, part_of, read_parts
from graphcl.store.reader import MASKS
from graphcl.store.typed_parts import ends, open_typed_part, read_typed_parts

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

    parts: Parts
    node_ids: Array | Names | None
    y: Array | None
    split: npt.NDArray[np.uint8] | None
    degree: npt.NDArray[np.int32]
    class_names: tuple[str, ...]

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.parts.num_nodes


def read_parts_nodes(path: Path) -> PartsNodes:
    """Reads the nodes of all parts.

    Raises:
        StoreError: a part is missing, damaged or of another build.
    """
    return _nodes_of(read_parts(path))


def read_type_nodes(path: Path, name: str) -> PartsNodes:
    """Reads the nodes of a type of all parts of a typed graph; a degree counts all relations.

    Raises:
        RunError: there is no such type.
        StoreError: a part is missing, damaged or of another build.
    """
    parts = read_typed_parts(path)
    if name not in parts.types:
        known = ", ".join(parts.types)
        raise RunError(f"{path}: has no type {name!r}; its types: {known}")
    nodes = _nodes_of(parts.types[name])
    for number in range(len(parts)):
        part = open_typed_part(path, number)
        for (key, backwards), edges in part.edges.items():
            if ends(key, backwards)[0] == name:
                nodes.degree[part.nodes[name].nodes] += np.diff(edges["indptr"]).astype(np.int32)
    return nodes


def _nodes_of(parts: Parts) -> PartsNodes:
    ids, y, degree = [], [], np.empty(parts.num_nodes, np.int32)
    split = np.zeros(parts.num_nodes, np.uint8)
    masked, class_names = False, ()
    for number in range(len(parts)):
        part = part_of(parts, number)  # mapped, and closed after each part
        fields, nodes = part.fields, part.nodes
        degree[nodes] = np.diff(fields["indptr"])
        for code, name in enumerate(MASKS, 1):
            if name in fields:
                split[nodes][np.asarray(fields[name])] = code
                masked = True
        if "node_ids" in fields:
            ids.append(_held(fields["node_ids"]))
        if "y" in fields:
            y.append(np.array(fields["y"]))
        class_names = fields["class_names"]
    named: Any = None
    if ids:
        texts = [one for one in ids if isinstance(one, Names)]
        named = join_names(texts) if texts else np.concatenate(ids)
    labels = np.concatenate(y) if y else None
    return PartsNodes(parts, named, labels, split if masked else None, degree, tuple(class_names))


def check_same_build(shards: ShardedEmbeddings, parts: Parts) -> None:
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
