"""`graphcl.report`: the HTML file of a fitted model or of a run."""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphcl.devices import device_name, resolve_device
from graphcl.errors import GraphError, RunError, require
from graphcl.estimator import GraphCL
from graphcl.estimator.typed import as_typed
from graphcl.evaluation import linear_probe
from graphcl.files.atomic import check_new_file, write_whole
from graphcl.graphs.collection import as_graphs
from graphcl.graphs.graph import Graph
from graphcl.reporting.contents import AnyGraph, gather
from graphcl.reporting.page import render
from graphcl.reporting.sharded import Sharded
from graphcl.runs.results import GraphFacts
from graphcl.runs.typed import run_types, type_folder
from graphcl.version import versions


def report(
    source: Any,
    graph: Any = None,
    out: str | Path = "report.html",
    *,
    layout: str = "umap",
    seed: int = 0,
    overwrite: bool = False,
    embeddings: str | Path | None = None,
    node_type: str | None = None,
) -> Path:
    """Writes one HTML file that shows a training: graph, loss, map of embeddings, scores.

    It needs no network. If the graph has labels, the probe scores the embeddings.

    Args:
        source: a fitted model, or the path of a run.
        graph: the graph that was trained on; needed for a model. Without it, the page of a run
            leaves out what needs edges. With `embeddings`, the path of their store in parts.
        out: the file, `.html`.
        layout: ``umap``, or ``pca``, which is faster and needs no extra.
        seed: decides the map, clusters and samples.
        overwrite: replace an existing file.
        embeddings: the path of a folder of shards, which `graphcl embed RUN PARTS` wrote; they are
            shown instead of those in the run. `source` is then the path of that run.
        node_type: of a typed graph: the type that the page is about; None is the only one with
            labels.

    Returns:
        The path of the file.

    Raises:
        GraphCLError: the model is not fitted, the graph does not fit, or the file is there.
    """
    require(layout in ("umap", "pca"), "report", "layout", "umap or pca", layout)
    target = Path(out)
    check_new_file(target, (".html", ".htm"), RunError, overwrite=overwrite)
    if embeddings is not None:
        if not isinstance(source, str | Path):
            raise GraphError("report: embeddings in shards belong to a run; pass its path")
        sharded = Sharded(Path(source), Path(embeddings), graph, seed=seed)
        contents = gather(Path(source), None, method=layout, seed=seed, sharded=sharded)
        write_whole(target, render(contents).encode("utf-8", "replace"))
        return target
    typed = None if graph is None else as_typed(graph)
    given = None if graph is None or typed is not None else as_graphs(graph)
    if isinstance(source, str | Path):
        if node_type is None and run_types(Path(source)):
            node_type = _labelled(typed)
        contents = gather(
            Path(source),
            given,
            method=layout,
            seed=seed,
            why="no graph was passed to report",
            node_type=node_type,
        )
    else:
        if given is None and typed is None:
            raise GraphError("report: a model needs the graph that it was trained on")
        with tempfile.TemporaryDirectory(prefix="graphcl-") as folder:
            run = Path(folder) / "run"
            source.save(run, graph=typed or given)
            if typed is not None:
                kind = node_type or _labelled(typed)
                result = _result(source, typed, type_folder(run, kind), kind)
                result["probe"] = result["probe"] and {"type": kind, **result["probe"]}
            else:
                assert given is not None
                kind, result = None, _result(source, given, run)
            contents = gather(run, given, method=layout, seed=seed, result=result, node_type=kind)
    write_whole(target, render(contents).encode("utf-8", "replace"))
    return target


def _labelled(graph: Graph | None) -> str:
    """Returns the only type with labels.

    Raises:
        GraphError: none has, or several.
    """
    if graph is None or not graph.labelled_type:
        raise GraphError("report: of a typed graph, say which type the page is about: node_type=")
    return graph.labelled_type


def _result(
    model: GraphCL, graph: AnyGraph, run: Path, node_type: str | None = None
) -> dict[str, Any]:
    """Returns what `graphcl train` would have kept as `result.json`, as far as it is known."""
    import numpy as np

    from graphcl.runs.files import EMBEDDINGS

    health = getattr(model, "health_", None)  # a model that was loaded has none
    result: dict[str, Any] = {
        "graph": asdict(GraphFacts.of(graph, graph.name)),
        "probe": None,
        "probe_skipped": "the graph has no labels",
        "seed": model.seed_,
        "train_seconds": model.seconds_,
        "device": device_name(resolve_device(model.device)),
        "versions": versions(),
    }
    if health is not None:
        result |= {"effective_rank": health.effective_rank, "mean_cosine": health.mean_cosine}
        result["warnings"] = [sign.to_json() for sign in health.warnings]
    judged = graph.nodes[node_type] if isinstance(graph, Graph) and node_type else graph
    if judged.y is not None:
        try:
            z = np.load(run / EMBEDDINGS)
            result["probe"] = asdict(linear_probe(z, judged))
        except GraphError as error:
            result["probe_skipped"] = str(error)
    return result
