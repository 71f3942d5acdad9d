"""`graphcl embed` for runs of typed graphs: all types in one table, or one type."""

from pathlib import Path
from typing import Any

import numpy as np

from graphcl.cli._shared.graphs import (
    as_trained,
    graph_name,
    load_any,
    load_run_any,
    run_graph,
    run_tables,
)
from graphcl.cli._shared.launch import launch
from graphcl.cli._shared.options import print_result
from graphcl.cli.embed import new_rows
from graphcl.devices import resolve_device
from graphcl.distributed import group, local_device
from graphcl.errors import DatasetError, ParameterError, require
from graphcl.estimator import GraphCL
from graphcl.exporting.vectors import batches, write_vectors
from graphcl.graphs.graph import Graph
from graphcl.opening import AnyGraph, is_typed_file
from graphcl.runs.embeddings import write_embeddings
from graphcl.runs.typed import run_types, type_folder
from graphcl.tabular.options import TableOptions, counted


def embed_types(
    run: Path,
    graph: str | None,
    tables: TableOptions,
    out: Path,
    *,
    node_type: str | None,
    rows: str,
    ids: list[str],
    new: Path | None,
    to: str,
    processes: int,
    device: str,
    as_json: bool,
) -> None:
    """Writes the embeddings of a type, or of all types with a column ``type``."""
    if node_type is not None:
        type_folder(run, node_type)  # or there is no such type
    names = run_types(run)
    if node_type is None and len(names) == 1:
        node_type = names[0]
    example = f"name one of {', '.join(names)}: --type {names[0]}"
    for option, given in (("--rows", rows), ("--id", ids), ("--new", new), ("--to", to)):
        if given and node_type is None:
            raise ParameterError(f"embed: {option}: of which type? {example}")
    if out.suffix == ".npy" and node_type is None:
        raise ParameterError(f"embed: an .npy has no column of types; {example}, or write a .csv")
    launch(processes)
    source, loaded = _graph(run, graph, tables, out)
    typed = isinstance(loaded, Graph) and not loaded.is_plain
    require(typed, "embed", "GRAPH", "a typed graph, as in training", source)
    assert isinstance(loaded, Graph)
    where = local_device(resolve_device(device))
    model = GraphCL.load(run, device=str(where))
    about: dict[str, Any] = {"out": str(out), "graph": source}
    chosen: Any = None
    if node_type is not None:
        nodes = loaded.type(node_type)
        chosen = _range(rows, nodes.num_nodes) if rows else np.array(ids) if ids else None
    with group(where) as share:
        if new is not None:
            live = model.live(loaded, node_type=node_type)
            z: Any = new_rows(live, new, type_folder(run, live.nodes.name))
        else:
            z = model.transform(loaded, node_type=node_type, nodes=chosen)
    if not share.first:
        return
    if node_type is None:
        table = np.concatenate(list(z.values()))
        kinds = np.repeat(np.array(list(z), dtype=object), [len(one) for one in z.values()])
        write_embeddings(out, table, _all_ids(loaded), types=kinds)
        about["types"] = {name: len(one) for name, one in z.items()}
    else:
        table, first = z, chosen.start if rows else 0
        names_of = np.array(ids, dtype=object) if ids else nodes.node_ids
        names_of = None if new is not None else names_of
        if to:
            write_vectors(out, to, batches(table, names_of, first=first), dim=table.shape[1])
        else:
            write_embeddings(out, table, names_of, first=first)
        about |= {"type": node_type, "first": first}
    about |= {"nodes": len(table), "dim": table.shape[1]}
    text = f"{out}: {counted(len(table), 'embedding')} of {counted(table.shape[1], 'number')}"
    if node_type is None:
        text += (
            " (" + ", ".join(f"{count:,} {name}" for name, count in about["types"].items()) + ")"
        )
    print_result(about, text, as_json=as_json)


def _graph(run: Path, graph: str | None, tables: TableOptions, out: Path) -> tuple[str, AnyGraph]:
    """Returns the graph that is named, or that of the run, and its name."""
    if graph is None and tables.edges is None:
        require(not tables.given(), "embed", "GRAPH", "named when table options are given", graph)
        return run_graph(run), load_run_any(run, again=("embed", str(run), "--out", str(out)))
    name, trained = graph_name(graph, tables, "embed"), run_tables(run)
    stored = graph is not None and is_typed_file(Path(graph)) and not tables.given()
    if trained is not None and not stored:  # a store was prepared when it was built
        tables = as_trained(run, tables.after(trained))
    loaded = load_any(graph, tables)
    if loaded.is_plain:
        raise DatasetError(f"{name}: is a plain graph; the model was trained on a typed one")
    return name, loaded


def _all_ids(graph: Graph) -> Any:
    """Returns the ids of all nodes, type after type, as texts."""
    texts: list[str] = []
    for nodes in graph.nodes.values():
        ids = np.arange(nodes.num_nodes) if nodes.node_ids is None else nodes.node_ids
        texts += map(str, ids.tolist())
    return np.array(texts, dtype=object)


def _range(text: str, count: int) -> slice:
    start, colon, stop = text.partition(":")
    numbers = [start or "0", stop or str(count)]
    if not colon or not all(one.isdecimal() and len(one) < 16 for one in numbers):
        raise ParameterError(f"embed: --rows must be START:STOP; got {text!r}")
    first, end = map(int, numbers)
    require(0 <= first < end <= count, "embed", "--rows", f"a range within 0:{count}", text)
    return slice(first, end)
