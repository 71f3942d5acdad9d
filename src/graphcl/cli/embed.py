"""`graphcl embed`: writes the embeddings of a graph, seen or unseen in training, to a file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from graphcl.cli.answers import RunArgument, TypeOption
from graphcl.cli.options import DeviceOption, JsonOption, print_result
from graphcl.cli.processes import ProcessesOption, launch
from graphcl.cli.table_options import takes_tables
from graphcl.errors import DatasetError, GraphError, ParameterError, RunError, counted, require
from graphcl.files.remote import local, named
from graphcl.files.text import read_text
from graphcl.graphs.relation import NODE
from graphcl.runs import files as runs
from graphcl.runs.nodes import run_types, type_folder
from graphcl.runs.versions import current_run
from graphcl.store.header import is_divided, is_parts, read_store
from graphcl.tabular.options import TableOptions

if TYPE_CHECKING:
    import torch

    from graphcl.opening import AnyGraph

Array = npt.NDArray[np.float32]
_WHICH = "Which nodes"  # a group of options
NEW_BYTES = 1 << 28  # of a file of new nodes


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
    run = current_run(run)
    several = sum((bool(ids), bool(rows), new is not None))
    require(several <= 1, "embed", "--rows, --id and --new", "one of them", rows)
    if graph is None and not tables.given() and (run / runs.CONFIG).exists():
        graph = _trained_parts(run)
    # Some nodes, or new ones, are those of the graph that was divided: it is read whole.
    if graph is not None and is_divided(Path(graph)) and not several:
        require(not to, "embed", "--to", "left out for parts", to)
        require(not tables.given(), "embed", "GRAPH", "tables if table options are given", graph)
        require(device in ("auto", "cpu"), "embed", "--device", "cpu for a store in parts", device)
        from graphcl.partitioned.shards import check_shards_folder

        check_shards_folder(out, overwrite=overwrite)
        _check_run_of_parts(run, Path(graph), node_type)
        launch(processes)
        _embed_parts(run, Path(graph), out, node_type=node_type, as_json=as_json)
        return
    from graphcl.exporting.vectors import batches, check_vectors, write_embeddings, write_vectors

    check_vectors(out, to, overwrite=overwrite)
    baseline = bool(runs.read_config(run, baselines=True).method)
    if baseline:
        require(not ids, "embed", "--id", "left out for a baseline", ids)
        require(new is None, "embed", "--new", "left out for a baseline", str(new))
        _require_stored(run, graph)
    if node_type is not None:
        type_folder(run, node_type)  # or there is no such type
    types = run_types(run)
    only = node_type if len(types) > 1 else next(iter(types), None)  # a plain graph has none
    if types and only is None:
        asked = {"--rows": rows, "--id": ids, "--new": new, "--to": to}
        _require_all_types(types, out, [option for option, value in asked.items() if value])
    launch(processes)
    from graphcl.devices import resolve_device
    from graphcl.distributed import group, local_device
    from graphcl.graphs.graph import Graph

    source, loaded = _graph(run, graph, tables, out)
    nodes = loaded.type(only) if isinstance(loaded, Graph) and only else loaded
    part = _range(rows, nodes) if rows else None
    where = local_device(resolve_device(device))
    with group(where) as share:
        if baseline:
            z = runs.read_embeddings(run)[part or slice(None)]
        elif new is not None:
            z = _new_rows(run, loaded, only, new, where)
        else:
            how = {"device": where, "scratch": out.absolute().parent, "verbose": share.first}
            z = _rows(run, loaded, ids or None, part, node_type=only, **how)
    if not share.first:
        return
    about: dict[str, Any] = {"out": str(out), "graph": source}
    named: dict[str, Any] = {"first": part.start if part else 0}
    names: Any = np.array(ids, dtype=object) if ids else None
    if isinstance(z, dict):
        about["types"] = {name: len(one) for name, one in z.items()}
        kinds = np.repeat(np.array(list(z), dtype=object), list(about["types"].values()))
        texts = [str(one) for kind in loaded.nodes.values() for one in kind.ids[:].tolist()]
        names, named = np.array(texts, dtype=object), {"types": kinds}
        z = np.concatenate(list(z.values()))
    else:
        names = nodes.node_ids if names is None and new is None else names
        about |= ({"type": only} if types else {}) | named
    if to:
        write_vectors(out, to, batches(z, names, **named), dim=z.shape[1])
    else:
        write_embeddings(out, z, names, **named)
    text = f"{out}: {counted(len(z), 'embedding')} of {counted(z.shape[1], 'number')}"
    if "types" in about:
        text += f" ({_per_type(about['types'])})"
    print_result(about | {"nodes": len(z), "dim": z.shape[1]}, text, as_json=as_json)


def _require_all_types(types: list[str], out: Path, options: list[str]) -> None:
    """Refuses what is of one type of several, if none is named."""
    example = f"name one of {', '.join(types)}: --type {types[0]}"
    if options:
        raise ParameterError(f"embed: {options[0]}: of which type? {example}")
    if out.suffix == ".npy":
        raise ParameterError(f"embed: an .npy has no column of types; {example}, or write a .csv")


def _require_stored(run: Path, graph: str | None) -> None:
    """Refuses a baseline's run that has no embeddings of this graph."""
    from graphcl.runs.graph import run_graph

    name, source = runs.read_config(run, baselines=True).method, run_graph(run)
    if graph is not None and named(graph) != source:
        raise RunError(f"{run}: {name} has embeddings of {source} only; train it on {graph}")
    if (run / runs.PREDICTIONS).exists():
        raise RunError(f"{run}: {name} is supervised: it predicts classes and has no embeddings")


def _graph(run: Path, graph: str | None, tables: TableOptions, out: Path) -> tuple[str, Any]:
    """Returns the graph that is named, or that of the run, and its name."""
    from graphcl.cli.graphs import graph_name, load_graph, load_run_graph
    from graphcl.runs.graph import as_trained, names_tables, run_graph
    from graphcl.runs.nodes import trained_tables

    baseline = runs.read_config(run, baselines=True).method
    if baseline or (graph is None and tables.edges is None):
        again = ("embed", str(run), "--out", str(out))
        return run_graph(run), load_run_graph(run, graph, tables, again=again)
    name, trained = graph_name(graph, tables, "embed"), trained_tables(run)
    if trained is not None and names_tables(name, tables):
        tables = as_trained(run, tables.after(trained))
    return name, load_graph(graph, tables)


def _rows(run: Path, graph: "AnyGraph", *asked: Any, **how: Any) -> Any:
    """Returns embeddings: of one type, or of several graphs below each other, or by type.

    Without the estimator, whose imports take a second. Ids or rows are asked for, or None.
    """
    from graphcl.estimator.fitted import Fitted
    from graphcl.estimator.inference import embed_chosen
    from graphcl.graphs.graph import Graph

    fitted = Fitted.read(run)
    if isinstance(graph, Graph):
        z, _ = embed_chosen(fitted, graph, *asked, **how)
        several = not fitted.schema.is_plain and how["node_type"] is None
        return z if several else next(iter(z.values()))
    require(asked[0] is None, "embed", "--id", "a node of one graph", asked[0])
    tables = [embed_chosen(fitted, one, **how)[0] for one in graph.graphs]
    return np.concatenate([rows for table in tables for rows in table.values()])


def _new_rows(
    run: Path, graph: "AnyGraph", node_type: str | None, file: Path, device: "torch.device"
) -> Array:
    """Returns the embeddings of nodes that the graph does not have, which a file describes.

    Raises:
        RunError: the file is not there, or is not understood.
    """
    from graphcl.estimator.fitted import Fitted
    from graphcl.estimator.inference import Live
    from graphcl.graphs.graph import Graph
    from graphcl.serving.requests import JSON, Bounds, Reader
    from graphcl.tabular.kinds import prepare_rows
    from graphcl.tabular.preparation import read_preparation

    if not isinstance(graph, Graph):
        raise RunError("embed: --new joins nodes to one graph, not to several")
    live = Live(Fitted.read(run), graph, device, node_type)
    folder = type_folder(run, node_type)
    try:
        text = read_text(file, RunError, limit=NEW_BYTES)
    except FileNotFoundError:
        raise RunError(f"{file}: no such file") from None
    features, prepared = live.nodes.num_features, read_preparation(folder)
    prepare: Any = prepared and partial(prepare_rows, preparation=prepared, width=features)
    try:
        bounds = Bounds(nodes=1 << 40, neighbours=1 << 40)  # none: it is a file of one's own
        read = Reader({"new": ("new",)}, bounds, features=features, prepare=prepare)
        asked = read("new", text.encode(), JSON).new
        assert asked is not None
        return live.embed_new(
            asked.features,
            [np.array(names, dtype=object) for names in asked.neighbours],
            edges=asked.edges or None,
            weights=asked.weights,
        )
    except GraphError as error:
        raise RunError(f"{file}: {error}") from None


def _per_type(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _range(text: str, nodes: Any) -> slice:
    """Returns the range that ``--rows`` names, after checking that there are these nodes."""
    from graphcl.graphs.collection import GraphCollection

    count = nodes.num_nodes
    start, colon, stop = text.partition(":")
    numbers = [start or "0", stop or str(count)]
    if not colon or not all(number.isdecimal() and len(number) < 16 for number in numbers):
        raise ParameterError(f"embed: --rows must be START:STOP; got {text!r}")
    first, end = map(int, numbers)
    within = not isinstance(nodes, GraphCollection) and 0 <= first < end <= count
    require(within, "embed", "--rows", f"a range within 0:{count} of one graph", text)
    return slice(first, end)


def _trained_parts(run: Path) -> str | None:
    """Returns the store in parts that a run was trained on; None if it was something else.

    Raises:
        RunError: there is one of that name, and it is of another build.
    """
    config = runs.read_config(run, baselines=True)
    graph = local(config.origin.graph) if config.is_sealed else config.origin.graph
    if not (graph and is_parts(Path(graph))):
        return None
    if read_store(Path(graph)).build != config.origin.build:
        raise RunError(f"{run}: {graph} is not the graph that the run was trained on")
    return str(graph)


def _check_run_of_parts(run: Path, graph: Path, node_type: str | None) -> None:
    """Refuses a run that cannot embed these parts, before any process is started.

    Raises:
        DatasetError: one of them is typed, and the other is not.
        RunError: the run is damaged, or has no such type.
    """
    typed = not read_store(graph).is_plain
    if typed != bool(run_types(run)):
        kind, other = ("typed", "plain") if typed else ("plain", "typed")
        raise DatasetError(
            f"{graph}: is a {kind} graph in parts; the model was trained on a {other} one"
        )
    if node_type is not None:
        require(typed, "embed", "--type", "left out for a plain graph", node_type)
        type_folder(run, node_type)  # or there is no such type


def _embed_parts(
    run: Path, graph: Path, out: Path, *, node_type: str | None, as_json: bool
) -> None:
    """Embeds a store in parts; each process opens its part and writes its shards."""
    import torch

    from graphcl.distributed import group
    from graphcl.estimator.fitted import Fitted
    from graphcl.estimator.partitioned import embed_own_part
    from graphcl.exporting.vectors import write_embeddings
    from graphcl.partitioned.shards import suffix_of, whole_shards, write_shard, write_typed_shards

    fitted, model, suffix = Fitted.read(run), runs.weights_digest(run), suffix_of(out)
    with group(torch.device("cpu")) as share, whole_shards(out, share) as folder:
        part, z = embed_own_part(fitted, graph, share, scratch=folder)
        parts, width = part.store, next(iter(z.values())).shape[1]
        writes: dict[str, Callable[[Path], None]] = {}
        for name, rows in z.items():
            names = part.nodes[name].fields.get("node_ids")
            first = part.nodes[name].nodes.start if names is None else 0
            writes[name] = partial(write_embeddings, z=rows, node_ids=names, first=first)
        about: dict[str, Any] = {"dim": width, "shards": len(parts), "build": parts.build}
        text = ""
        if node_type is None and not fitted.schema.is_plain:
            write_typed_shards(folder, suffix, parts, share, width, writes, model=model)
            types = {name: one.num_nodes for name, one in parts.types.items()}
            about |= {"nodes": parts.num_nodes, "types": types}
            text = f" of each type ({_per_type(types)})"
        else:
            own = parts.types[node_type or NODE]
            write_shard(folder, suffix, own, share, width, writes[node_type or NODE], model=model)
            about |= ({"type": node_type} if node_type else {}) | {"nodes": own.num_nodes}
    if share.first:
        shards = counted(about["shards"], "shard")
        text = f"{out}: {counted(about['nodes'], 'embedding')} in {shards}{text}"
        print_result({"out": str(out), "graph": str(graph), **about}, text, as_json=as_json)
