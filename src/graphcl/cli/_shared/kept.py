"""Embeddings of a run that was trained over parts, which writes none: made once, and kept in it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphcl.errors import RunError, counted
from graphcl.estimator import GraphCL
from graphcl.files.atomic import whole_file
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.opening import AnyGraph
from graphcl.runs import files as runs
from graphcl.runs.nodes import describe_nodes, write_nodes
from graphcl.runs.typed import lacks_embeddings, type_folder
from graphcl.training_run import Rows, embed_rows


def keep_embeddings(run: Path, graph: AnyGraph, *, device: str = "auto") -> None:
    """Embeds the graph of a run and keeps the result in it, unless it has embeddings already.

    Rows are in the order of the graph, so `graph` is the one that was divided, not one of parts.

    Raises:
        RunError: the run cannot be written.
    """
    if not lacks_embeddings(run):
        return
    about = f"{run}: was trained over parts; embedding {counted(graph.num_nodes, 'node')}"
    print(f"{about}, kept in the run", file=sys.stderr, flush=True)
    where = "cuda" if device == "auto" and torch.cuda.is_available() else device
    model = GraphCL.load(run, device="cpu" if where == "auto" else where)
    try:
        if isinstance(graph, Graph) and not graph.is_plain:
            by_type: Any = model.transform(graph)
            for name, z in by_type.items():
                _keep(type_folder(run, name), describe_nodes(graph, name), z)
        else:
            _keep(run, describe_nodes(graph), embed_rows(model, graph, scratch=run.absolute()))
    except OSError as error:
        raise RunError(f"{run}: its embeddings cannot be kept ({error.strerror})") from None


def _keep(folder: Path, nodes: Nodes, z: Rows) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_nodes(folder, nodes)
    with whole_file(folder / runs.EMBEDDINGS) as staging:  # last: it says that all is there
        np.save(staging, z)
