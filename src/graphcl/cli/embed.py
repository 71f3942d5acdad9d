"""`graphcl embed`: writes the embeddings of a graph, seen or unseen in training, to a file."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from graphcl.cli._shared.answers import TypeOption
from graphcl.cli._shared.embed_typed import embed_types
from graphcl.cli._shared.graphs import (
    AnyGraph,
    load_graph,
    load_run_graph,
    names_tables,
    run_graph,
    run_tables,
)
from graphcl.cli._shared.launch import ProcessesOption, launch
from graphcl.cli._shared.options import DeviceOption, JsonOption, print_result
from graphcl.cli._shared.tables import takes_tables
from graphcl.devices import resolve_device
from graphcl.distributed import group, local_device
from graphcl.errors import ParameterError, RunError, require
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.inference import chosen_nodes, embed_fitted
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.runs import files as runs
from graphcl.runs.embeddings import check_embeddings_file, write_embeddings
from graphcl.runs.typed import run_types
from graphcl.tabular.options import TableOptions, counted

Array = npt.NDArray[np.float32]


@takes_tables
def embed(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    graph: Annotated[
        str | None,
        typer.Argument(
            help="A dataset, a store, an .npz or a list of edges. (default: the run's graph)"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file: .npy, .parquet or .csv.")] = ...,  # type: ignore[assignment]
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    rows: Annotated[
        str, typer.Option(metavar="START:STOP", help="A range of nodes. (default: all)")
    ] = "",
    ids: Annotated[
        list[str], typer.Option("--id", metavar="ID", help="Only this node, by id; repeatable.")
    ] = [],  # noqa: B006 (typer copies it)
    node_type: TypeOption = None,
    device: DeviceOption = "auto",
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
    processes: ProcessesOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Embed every node of a graph with a trained model; the graph may be one it never saw.

    For a dataset with several graphs (ppi), the file contains the rows of the training, then the
    validation, then the test graphs. A large graph is embedded layer by layer, in blocks; what does
    not fit in memory is stored in temporary files beside the output. --rows saves time with one or
    two layers; with three, the neighbourhood of a range is soon the whole graph. Several processes
    share the rows of a graph with more than 50,000 nodes. For a run of a baseline, the embeddings
    stored in the run are written.

    Of a typed graph, a .parquet or .csv has the nodes of all types, with a column type; --type
    writes those of one.

    Examples:

        graphcl embed runs/cora --out cora.npy

        graphcl embed runs/cora other.npz --out other.parquet

        graphcl embed runs/big STORE --rows 0:1000000 --out first.npy

        graphcl embed runs/edges new_edges.csv --nodes new_nodes.csv --out new.csv

        graphcl embed runs/mine grown.npz --id "Ada Lovelace" --id "Alan Turing" --out two.csv

        graphcl embed runs/papers --type author --out authors.npy
    """
    require(not (ids and rows), "embed", "--rows and --id", "one of them", rows)
    check_embeddings_file(out, overwrite=overwrite)
    if runs.read_config(run, baselines=True).method:
        require(not ids, "embed", "--id", "left out for a baseline", ids)
        _embed_baseline(run, graph, tables, out, rows=rows, as_json=as_json)
        return
    if run_types(run):
        allowed = "1: a typed graph is embedded in one process"
        require(processes == 1, "embed", "--processes", allowed, processes)
        embed_types(
            run,
            graph,
            tables,
            out,
            node_type=node_type,
            rows=rows,
            ids=ids,
            device=device,
            as_json=as_json,
        )
        return
    require(node_type is None, "embed", "--type", "left out for a plain graph", node_type)
    launch(processes)
    where = local_device(resolve_device(device))
    fitted = Fitted.read(run)
    if graph is None:
        require(not tables.given(), "embed", "GRAPH", "named when table options are given", graph)
        again = ("embed", str(run), "--out", str(out))
        source, loaded = run_graph(run), load_run_graph(run, again=again)
    else:
        trained = run_tables(run) if names_tables(graph, tables) else None
        source = graph
        loaded = load_graph(graph, tables if trained is None else tables.after(trained))
    chosen = _range(rows, loaded)
    if ids:
        one = isinstance(loaded, Graph)
        require(one, "embed", "--id", "a node of one graph", ids)
    with group(where) as share:
        several = isinstance(loaded, GraphCollection)
        graphs = loaded.graphs if isinstance(loaded, GraphCollection) else (loaded,)
        nodes = None if several else chosen_nodes(graphs[0], np.array(ids) if ids else chosen)
        scratch = None if several else out.absolute().parent
        options: dict[str, Any] = {"device": where, "scratch": scratch, "verbose": share.first}
        parts = [embed_fitted(fitted, one, nodes, **options) for one in graphs]
        z = np.concatenate(parts) if several else parts[0]
    if not share.first:
        return
    if ids:
        write_embeddings(out, z, np.array(ids, dtype=object))
        about = {"out": str(out), "graph": source, "nodes": len(z), "dim": z.shape[1]}
        text = _text(out, z)
        print_result(about, text, as_json=as_json)
        return
    _write(out, z, loaded, source, chosen.start if chosen else 0, as_json=as_json)


def _embed_baseline(
    run: Path, graph: str | None, tables: TableOptions, out: Path, *, rows: str, as_json: bool
) -> None:
    """Writes the embeddings that are stored in the run of a baseline.

    Raises:
        RunError: another graph is requested, or the baseline is supervised and has no embeddings.
    """
    name = runs.read_config(run, baselines=True).method
    source = run_graph(run)
    if graph is not None and graph != source:
        raise RunError(f"{run}: {name} has embeddings of {source} only; train it on {graph}")
    if (run / runs.PREDICTIONS).exists():
        raise RunError(f"{run}: {name} is supervised: it predicts classes and has no embeddings")
    again = ("embed", str(run), "--out", str(out))
    z, loaded = runs.read_embeddings(run), load_run_graph(run, graph, tables, again=again)
    chosen = _range(rows, loaded) or slice(0, len(z))
    _write(out, z[chosen], loaded, source, chosen.start, as_json=as_json)


def _write(out: Path, z: Array, graph: AnyGraph, source: str, first: int, *, as_json: bool) -> None:
    write_embeddings(out, z, graph.node_ids, first=first)
    about = {"out": str(out), "graph": source, "first": first}
    text = _text(out, z)
    print_result(about | {"nodes": z.shape[0], "dim": z.shape[1]}, text, as_json=as_json)


def _text(out: Path, z: Array) -> str:
    return f"{out}: {counted(len(z), 'embedding')} of {counted(z.shape[1], 'number')}"


def _range(text: str, graph: AnyGraph) -> slice | None:
    """Returns the range that ``--rows`` names, after checking that the graph has these nodes."""
    if not text:
        return None
    start, colon, stop = text.partition(":")
    numbers = [start or "0", stop or str(graph.num_nodes)]
    if not colon or not all(number.isdecimal() and len(number) < 16 for number in numbers):
        raise ParameterError(f"embed: --rows must be START:STOP; got {text!r}")
    first, end = map(int, numbers)
    within = isinstance(graph, Graph) and 0 <= first < end <= graph.num_nodes
    allowed = f"a range within 0:{graph.num_nodes} of one graph"
    require(within, "embed", "--rows", allowed, text)
    return slice(first, end)
