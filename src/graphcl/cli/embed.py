"""`graphcl embed`: writes the embeddings of a graph, seen or unseen in training, to a file."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer

from graphcl.cli._shared.answers import RunArgument, TypeOption
from graphcl.cli._shared.embed_parts import check_run_of_parts, embed_parts, trained_parts
from graphcl.cli._shared.graphs import (
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
from graphcl.errors import GraphError, ParameterError, RunError, require
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.inference import chosen_nodes, embed_fitted
from graphcl.estimator.live import Live
from graphcl.exporting.vectors import batches, check_vectors, write_vectors
from graphcl.files.text import read_text
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.opening import AnyGraph
from graphcl.partitioned.shards import (
    check_shards_folder,
)
from graphcl.runs import files as runs
from graphcl.runs.embeddings import check_embeddings_file, write_embeddings
from graphcl.runs.typed import run_types, type_folder
from graphcl.runs.versions import current_run
from graphcl.serving.asking import JSON, Bounds, read_asked
from graphcl.store.header import is_divided
from graphcl.tabular.options import TableOptions, counted
from graphcl.tabular.preparation import read_preparation
from graphcl.tabular.rows import prepare_rows

Array = npt.NDArray[np.float32]
_WHICH = "Which nodes"  # a group of options
NEW_BYTES = 1 << 28  # of a file of new nodes
ANY = Bounds(nodes=1 << 40, neighbours=1 << 40)  # a file of one's own is not bounded
CPU = torch.device("cpu")


@takes_tables
def embed(
    run: RunArgument,
    graph: Annotated[
        str | None,
        typer.Argument(
            help="A dataset, a store, an .npz or a list of edges. (default: the run's graph)"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file, .npy, .parquet or .csv; see --to.")] = ...,  # type: ignore[assignment]
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    rows: Annotated[
        str,
        typer.Option(
            metavar="START:STOP",
            help="A range of nodes. (default: all)",
            rich_help_panel=_WHICH,
        ),
    ] = "",
    ids: Annotated[
        list[str],
        typer.Option(
            "--id",
            metavar="ID",
            help="Only this node, by id; repeatable.",
            rich_help_panel=_WHICH,
        ),
    ] = [],  # noqa: B006 (typer copies it)
    new: Annotated[
        Path | None,
        typer.Option(
            help="Nodes that the graph does not have: a JSON file as the service takes it, "
            '{"new": [{"columns": {"age": 3}, "neighbors": ["a"]}]}, or with "features": [1, 2].',
            rich_help_panel=_WHICH,
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="parquet (a folder of shards), arrow (a file), faiss, usearch or lancedb "
            "(folders). (default: one file by its suffix)",
        ),
    ] = "",
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

    Of a store in parts, each of as many processes as parts opens its own part alone. --out is then
    a folder with a file for each part: .npy, or .parquet or .csv if the folder's name ends so. Of a
    typed one it has such a folder for each type; --type writes those of one.

    Examples:

        graphcl embed runs/cora --out cora.npy

        graphcl embed runs/cora other.npz --out other.parquet

        graphcl embed runs/big STORE --rows 0:1000000 --out first.npy

        graphcl embed runs/big PARTS --processes 4 --out shards.parquet

        graphcl embed runs/edges new_edges.csv --nodes new_nodes.csv --out new.csv

        graphcl embed runs/mine --new new.json --out new.csv

        graphcl embed runs/big STORE --to parquet --out shards

        graphcl embed runs/mine grown.npz --id "Ada Lovelace" --id "Alan Turing" --out two.csv

        graphcl embed runs/papers --type author --out authors.npy
    """
    several = sum((bool(ids), bool(rows), new is not None))
    require(several <= 1, "embed", "--rows, --id and --new", "one of them", rows)
    if graph is None and not tables.given() and (run / runs.CONFIG).exists():
        graph = trained_parts(run)
    # Some nodes, or new ones, are those of the graph that was divided: it is read whole.
    if graph is not None and is_divided(Path(graph)) and not several:
        require(not to, "embed", "--to", "left out for parts", to)
        require(not tables.given(), "embed", "GRAPH", "tables if table options are given", graph)
        require(device in ("auto", "cpu"), "embed", "--device", "cpu for a store in parts", device)
        check_shards_folder(out, overwrite=overwrite)
        check_run_of_parts(run, Path(graph), node_type)
        launch(processes)
        embed_parts(run, Path(graph), out, node_type=node_type, as_json=as_json)
        return
    if to:
        check_vectors(out, to, overwrite=overwrite)
    else:
        check_embeddings_file(out, overwrite=overwrite)
    if runs.read_config(run, baselines=True).method:
        require(not ids, "embed", "--id", "left out for a baseline", ids)
        require(new is None, "embed", "--new", "left out for a baseline", str(new))
        _embed_baseline(run, graph, tables, out, rows=rows, to=to, as_json=as_json)
        return
    if run_types(run):
        from graphcl.cli._shared.embed_typed import embed_types  # a second more, for types alone

        embed_types(
            run,
            graph,
            tables,
            out,
            node_type=node_type,
            rows=rows,
            ids=ids,
            new=new,
            to=to,
            processes=processes,
            device=device,
            as_json=as_json,
        )
        return
    if node_type is not None:
        type_folder(run, node_type)  # it is what the tables call the nodes, or refused
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
    if new is not None:
        _embed_new(run, fitted, loaded, new, out, source, where, to=to, as_json=as_json)
        return
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
        if to:
            write_vectors(out, to, batches(z, np.array(ids, dtype=object)), dim=z.shape[1])
        else:
            write_embeddings(out, z, np.array(ids, dtype=object))
        about = {"out": str(out), "graph": source, "nodes": len(z), "dim": z.shape[1]}
        text = _text(out, z)
        print_result(about, text, as_json=as_json)
        return
    _write(out, z, loaded, source, chosen.start if chosen else 0, to=to, as_json=as_json)


def _embed_new(
    run: Path,
    fitted: Fitted,
    graph: AnyGraph,
    file: Path,
    out: Path,
    source: str,
    device: torch.device,
    *,
    to: str,
    as_json: bool,
) -> None:
    """Writes the embeddings of nodes that the graph does not have; their ids are 0, 1, ….

    Raises:
        RunError: the file is not there, or is not understood.
    """
    if not isinstance(graph, Graph):
        raise RunError("embed: --new joins nodes to one graph, not to several")
    z = new_rows(Live(fitted, graph, device), file, current_run(run))
    if to:
        write_vectors(out, to, batches(z, None), dim=z.shape[1])
    else:
        write_embeddings(out, z, None)
    about = {"out": str(out), "graph": source, "nodes": len(z), "dim": z.shape[1]}
    print_result(about, _text(out, z), as_json=as_json)


def new_rows(live: Live, file: Path, folder: Path) -> Array:
    """Returns the embeddings of the new nodes in a file; `folder` has the table's preparation.

    Raises:
        RunError: the file is not there, or is not understood.
    """
    try:
        text = read_text(file, RunError, limit=NEW_BYTES)
    except FileNotFoundError:
        raise RunError(f"{file}: no such file") from None
    features, prepared = live.nodes.num_features, read_preparation(folder)
    prepare = prepared and partial(prepare_rows, preparation=prepared, width=features)
    try:
        how: dict[str, Any] = {"takes": ("new",), "prepare": prepare}
        asked = read_asked(text.encode(), JSON, ANY, features=features, **how).new
        assert asked is not None
        return live.embed_new(
            asked.features,
            [np.array(names, dtype=object) for names in asked.neighbours],
            edges=asked.edges or None,
            weights=asked.weights,
        )
    except GraphError as error:
        raise RunError(f"{file}: {error}") from None


def _embed_baseline(
    run: Path,
    graph: str | None,
    tables: TableOptions,
    out: Path,
    *,
    rows: str,
    to: str,
    as_json: bool,
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
    _write(out, z[chosen], loaded, source, chosen.start, to=to, as_json=as_json)


def _write(
    out: Path, z: Array, graph: AnyGraph, source: str, first: int, *, to: str, as_json: bool
) -> None:
    if to:
        write_vectors(out, to, batches(z, graph.node_ids, first=first), dim=z.shape[1])
    else:
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
