"""`graphcl train --method`: from a graph and a baseline to a run directory."""

import sys
from pathlib import Path

import numpy as np
import torch

from graphcl.cli.graphs import note
from graphcl.cli.options import print_result, print_warnings
from graphcl.cli.progress import count_progress, probe_text
from graphcl.datasets import CATALOGUE
from graphcl.devices import device_name
from graphcl.errors import GraphError, ParameterError, TrainingError
from graphcl.evaluation.failure import majority_sign
from graphcl.evaluation.unsupervised import effective_rank, mean_cosine
from graphcl.graphs.graph import Graph
from graphcl.opening import AnyGraph
from graphcl.research.trials import find_system, score_method, train_method
from graphcl.runs import files as runs
from graphcl.runs.nodes import describe_nodes, write_nodes
from graphcl.runs.results import BaselineResult, GraphFacts
from graphcl.version import versions


def check_baseline(
    name: str, source: str, *, settings: dict[str, str], ours: dict[str, bool]
) -> None:
    """Refuses, before any work, what a baseline does not know.

    Args:
        name: the baseline.
        source: the graph, as the command line names it.
        settings: the fields to change.
        ours: options that are GraphCL's alone, and whether each was given.
    """
    find_system(name).method(dataset_of(source), **settings)
    for option, given in ours.items():
        if given:
            raise ParameterError(f"{option} is graphcl's alone; {name} does not take it")


def train_baseline(
    name: str,
    graph: AnyGraph,
    *,
    origin: runs.Origin,
    out: Path | None,
    settings: dict[str, str],
    seed: int,
    probe_steps: int,
    device: torch.device,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Trains a baseline once, writes its run (``runs/GRAPH-METHOD`` by default), prints its score.

    The arguments are the options of `graphcl train`, and the origin of the graph.
    """
    baseline, dataset = find_system(name), dataset_of(origin.graph)
    out = out if out is not None else Path("runs") / f"{graph.name}-{name}"
    runs.check_output(out, overwrite=overwrite)
    print(f"{graph!r}; {baseline.title}; {device_name(device)}", file=sys.stderr)
    if not baseline.weighted and isinstance(graph, Graph) and graph.edge_weight is not None:
        print(f"note: {name} does not look at edge weights", file=sys.stderr)
    with count_progress(name, "epoch") as show:
        trial = train_method(
            name, graph, dataset, seed=seed, device=device, settings=settings, on_epoch=show
        )
    if trial.failed is not None:
        raise TrainingError(trial.failed)
    scores, why = None, None
    try:
        scored = score_method(trial, graph, probe_steps=probe_steps, device=device)
        scores = dict(scored.scores)
    except GraphError as error:  # labels are a gift, not a duty
        why = str(error)
    sign, z = majority_sign(scores, trial.settings, name), trial.embeddings
    measured = z is not None and len(z) > 1 and bool(np.isfinite(z).all())
    result = BaselineResult(
        graph=GraphFacts.of(graph, origin.graph),
        method=name,
        settings=trial.settings,
        scores=scores,
        scores_skipped=why,
        seed=seed,
        train_seconds=trial.train_seconds or 0.0,
        peak_memory_bytes=trial.peak_memory_bytes or 0,
        device=device_name(device),
        versions=versions(),
        note=note(graph),
        effective_rank=effective_rank(z, seed=seed) if measured else None,
        mean_cosine=mean_cosine(z, seed=seed) if measured else None,
        warnings=[sign.to_json()] if sign else [],
    )
    config = runs.RunConfig({}, name, trial.settings, seed=trial.seed, origin=origin)
    with runs.new_run(out, overwrite=overwrite) as folder:
        runs.write_config(folder, config)
        saved = {runs.EMBEDDINGS: trial.embeddings, runs.PREDICTIONS: trial.predictions}
        for file, array in saved.items():
            if array is not None:
                np.save(folder / file, array)
        write_nodes(folder, describe_nodes(graph))
        result.write(folder)
    what = "probe" if trial.embeddings is not None else "predictions"
    text = f"{what}: {probe_text(scores)}" if scores else f"no {what} scored: {why}"
    text += f"\nnote: {result.note}" if result.note else ""
    text += f"\nrun: {out}  ({result.train_seconds:.1f} s)"
    print_result(result.to_json(), text, as_json=as_json)
    print_warnings(result.warnings)


def dataset_of(source: str) -> str:
    """Returns the dataset that `source` names, or nothing: a file's name chooses no settings."""
    return source.lower() if source.lower() in CATALOGUE else ""
