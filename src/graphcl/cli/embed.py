"""`graphcl embed`: from a run and a graph, seen or unseen, to a file of embeddings."""

from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from graphcl.cli.common import DeviceOption, JsonOption, load_graph, print_json
from graphcl.cli.launch import ProcessesOption, launch
from graphcl.collection import GraphCollection
from graphcl.devices import resolve_device
from graphcl.distributed import group, local_device
from graphcl.errors import RunError
from graphcl.estimator import GraphCL
from graphcl.graph import Graph
from graphcl.io import runs
from graphcl.io.embeddings import check_output, write_embeddings


def embed(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    graph: Annotated[
        str | None, typer.Argument(help="A dataset or an .npz. (default: the run's own)")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file: .npy or .parquet.")] = ...,  # type: ignore[assignment]
    device: DeviceOption = "auto",
    overwrite: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
    processes: ProcessesOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Embed every node of a graph with a trained model; the graph may be one it never saw.

    Of a dataset of several graphs (ppi), rows are those of the training, validation and test
    graphs, one graph below the other. Several processes share the rows of a graph of more than
    50,000 nodes.

    Examples:

        graphcl embed runs/cora --out cora.npy

        graphcl embed runs/cora other.npz --out other.parquet
    """
    check_output(out, overwrite=overwrite)
    launch(processes)
    where = local_device(resolve_device(device))
    model = GraphCL.load(run, device=str(where))
    source = graph if graph is not None else run_graph(run)
    loaded = load_graph(source)
    with group(where) as share:
        z = rows(model, loaded)
    if not share.first:
        return
    write_embeddings(out, z, loaded.node_ids)
    if as_json:
        print_json({"out": str(out), "graph": source, "nodes": z.shape[0], "dim": z.shape[1]})
    else:
        print(f"{out}: {z.shape[0]:,} embeddings of {z.shape[1]} numbers")


def rows(model: GraphCL, graph: Graph | GraphCollection) -> npt.NDArray[np.float32]:
    """Returns the embeddings of a graph, or of all graphs of a collection one below the other."""
    if isinstance(graph, GraphCollection):
        return np.concatenate(model.transform(graph))
    return model.transform(graph)


def run_graph(run: Path) -> str:
    """Returns what the run was trained on, as the command line names it."""
    source = runs.read_config(run)["run"].get("graph")
    if not isinstance(source, str):
        raise RunError(f"{run}: does not say which graph it was trained on; name one")
    return source
