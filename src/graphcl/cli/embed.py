"""`graphcl embed`: from a run and a graph, seen or unseen, to a file of embeddings."""

from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from graphcl.cli.common import DeviceOption, JsonOption, load_graph, print_json
from graphcl.collection import GraphCollection
from graphcl.devices import resolve_device
from graphcl.errors import ParameterError, RunError, require
from graphcl.estimator import GraphCL
from graphcl.graph import Graph
from graphcl.io import runs
from graphcl.io.embeddings import check_output, write_embeddings


def embed(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    graph: Annotated[
        str | None, typer.Argument(help="A dataset, a store or an .npz. (default: the run's own)")
    ] = None,
    out: Annotated[Path, typer.Option(help="The file: .npy or .parquet.")] = ...,  # type: ignore[assignment]
    nodes: Annotated[
        str, typer.Option(metavar="START:STOP", help="A range of nodes. (default: all)")
    ] = "",
    device: DeviceOption = "auto",
    overwrite: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Embed every node of a graph with a trained model; the graph may be one it never saw.

    Of a dataset of several graphs (ppi), rows are those of the training, validation and test
    graphs, one graph below the other. A large graph is worked through layer by layer, in blocks;
    what does not fit in memory lies in temporary files beside the output. --nodes saves time in
    one or two layers; in three, a range's neighbourhood is soon the whole graph.

    Examples:

        graphcl embed runs/cora --out cora.npy

        graphcl embed runs/cora other.npz --out other.parquet

        graphcl embed runs/big STORE --nodes 0:1000000 --out first.npy
    """
    check_output(out, overwrite=overwrite)
    model = GraphCL.load(run, device=str(resolve_device(device)))
    source = graph if graph is not None else run_graph(run)
    loaded = load_graph(source)
    model.verbose = True
    chosen = _range(nodes, loaded)
    z = rows(model, loaded, nodes=chosen, scratch=out.absolute().parent)
    first = chosen.start if chosen else 0
    write_embeddings(out, z, loaded.node_ids, first=first)
    if as_json:
        about = {"out": str(out), "graph": source, "first": first}
        print_json(about | {"nodes": z.shape[0], "dim": z.shape[1]})
    else:
        print(f"{out}: {z.shape[0]:,} embeddings of {z.shape[1]} numbers")


def rows(
    model: GraphCL,
    graph: Graph | GraphCollection,
    *,
    nodes: slice | None = None,
    scratch: Path | None = None,
) -> npt.NDArray[np.float32]:
    """Returns the embeddings of a graph, or of all graphs of a collection one below the other."""
    if isinstance(graph, GraphCollection):
        return np.concatenate(model.transform(graph))
    return model.transform(graph, nodes=nodes, scratch=scratch)


def _range(text: str, graph: Graph | GraphCollection) -> slice | None:
    """Returns the range that ``--nodes`` names, refused where the graph has no such nodes."""
    if not text:
        return None
    start, colon, stop = text.partition(":")
    numbers = [start or "0", stop or str(graph.num_nodes)]
    if not colon or not all(number.isdecimal() and len(number) < 16 for number in numbers):
        raise ParameterError(f"embed: --nodes must be START:STOP; got {text!r}")
    first, end = map(int, numbers)
    within = isinstance(graph, Graph) and 0 <= first < end <= graph.num_nodes
    allowed = f"a range within 0:{graph.num_nodes} of one graph"
    require(within, "embed", "--nodes", allowed, text)
    return slice(first, end)


def run_graph(run: Path) -> str:
    """Returns what the run was trained on, as the command line names it."""
    source = runs.read_config(run)["run"].get("graph")
    if not isinstance(source, str):
        raise RunError(f"{run}: does not say which graph it was trained on; name one")
    return source
