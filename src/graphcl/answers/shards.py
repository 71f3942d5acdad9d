"""Embeddings in shards in place of a run's own: `neighbors`, `predict`, `cluster` and `report`.

Ids come from `.parquet` shards, or with labels, split and degrees from the store in parts.
"""

from pathlib import Path
from typing import Any

import numpy as np

from graphcl.errors import RunError, require
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import NODE
from graphcl.partitioned.embeddings import (
    ShardedEmbeddings,
    open_shards,
    shard_types,
    type_shards,
)
from graphcl.partitioned.nodes import check_same_build, read_parts_nodes
from graphcl.runs.files import weights_digest
from graphcl.store.header import is_divided, read_store


def shards_of_run(
    run: Path, folder: Path, graph: Any, owner: str, *, node_type: str | None = None
) -> tuple[ShardedEmbeddings, Nodes]:
    """Returns embeddings that a run made of a store in parts, and what is known of their nodes.

    Args:
        run: the run that embedded them.
        folder: the shards.
        graph: the path of the store in parts, or None. Without it, nodes have ids alone, and a
            degree of 0.
        owner: the command, for messages.
        node_type: of a typed graph, the type of the nodes. Its shards are in a folder with those of
            the other types, or alone.

    Raises:
        RunError: a shard is missing, torn or not of this set; the shards are of another model or
            of other parts; or nothing gives ids.
    """
    if node_type is not None and shard_types(folder):
        folder = type_shards(folder, node_type)
    shards = open_shards(folder)
    if node_type is not None and shards.name != node_type:
        raise RunError(f"{folder}: has embeddings of {shards.name!r}, not of {node_type!r}")
    if shards.model and shards.model != weights_digest(run):
        raise RunError(f"{folder}: these embeddings were made by another model than that of {run}")
    if graph is None:
        ids = shards.node_ids()
        if ids is None:
            raise RunError(
                f"{folder}: .npy shards have no ids; pass --graph PARTS, or embed into a folder "
                "whose name ends in .parquet"
            )
        return shards, Nodes(
            node_type or NODE, len(shards), node_ids=ids, degree=np.zeros(len(shards), np.int32)
        )
    path = Path(str(graph))
    known = is_divided(path) and read_store(path).is_plain == (node_type is None)
    require(known, owner, "--graph", "the store in parts that was embedded", str(graph))
    nodes = read_parts_nodes(path, node_type)
    check_same_build(shards, nodes)
    return shards, nodes
