"""`graphcl train --method`: from a graph and a baseline to a run directory."""

import sys
from pathlib import Path

import numpy as np
import torch

from graphcl.cli._shared.graphs import note
from graphcl.cli._shared.options import print_json
from graphcl.cli._shared.probing import probe_text
from graphcl.cli._shared.progress import count_progress
from graphcl.datasets import CATALOGUE
from graphcl.devices import device_name
from graphcl.errors import GraphError, ParameterError, TrainingError
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.runs import files as runs
from graphcl.runs.nodes import describe_nodes, write_nodes
from graphcl.runs.results import BaselineResult, GraphFacts
from graphcl.trials.methods import find_baseline, score_method, train_method
from graphcl.trials.rows import versions


def check_baseline(
    name: str, source: str, *, settings: dict[str, str], ours: dict[str, bool]
) -> None:
    """Refuses, before any work, what a baseline does not know.

    Args:
        name: what ``--method`` says.
        source: the graph, as the command line names it.
        settings: what ``--set`` says.
        ours: options that are GraphCL's alone, and whether each was given.

    Raises:
        ParameterError: the baseline or a field is unknown, a value is bad, or an option is ours.
    """
    find_baseline(name).method(dataset_of(source), **settings)
    for option, given in ours.items():
        if given:
            raise ParameterError(f"{option} is graphcl's alone; {name} does not take it")


def train_baseline(
    name: str,
    graph: Graph | GraphCollection,
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
    """Trains a baseline once, writes its run and prints its score.

    Args:
        name: what ``--method`` says.
        graph: what to train on.
        origin: what the run keeps of it.
        out: the run directory, or None for ``runs/GRAPH-METHOD``.
        settings: fields to change.
        seed: decides everything random.
        probe_steps: the probe's budget where a node has several labels.
        device: where to train.
        overwrite: replace a run that is there.
        as_json: print one JSON object.
    """
    baseline, dataset = find_baseline(name), dataset_of(origin.graph)
    out = out if out is not None else Path("runs") / f"{graph.name}-{name}"
    runs.check_output(out, overwrite=overwrite)
    print(f"{graph!r}; {baseline.title}; {device_name(device)}", file=sys.stderr)
    if not baseline.weighted and isinstance(graph, Graph) and graph.edge_weight is not None:
        print(f"note: {name} does not look at edge weights", file=sys.stderr)
    with count_progress(name, "epoch") as show:
        trained = train_method(
            name, graph, dataset, seed=seed, device=device, settings=settings, on_epoch=show
        )
    trial = trained.trial
    if trial.failed is not None:
        raise TrainingError(trial.failed)
    scores = None
    why = None
    try:
        scored = score_method(trained, graph, probe_steps=probe_steps, device=device)
        scores = dict(scored.scores)
    except GraphError as error:  # labels are a gift, not a duty
        why = str(error)
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
    )
    config = runs.RunConfig({}, name, trial.settings, seed=trial.seed, origin=origin)
    with runs.new_run(out, overwrite=overwrite) as folder:
        (folder / runs.CONFIG).write_text(config.to_toml())
        if trained.embeddings is not None:
            np.save(folder / runs.EMBEDDINGS, trained.embeddings)
        if trained.predictions is not None:
            np.save(folder / runs.PREDICTIONS, trained.predictions)
        write_nodes(folder, describe_nodes(graph))
        result.write(folder)
    if as_json:
        print_json(result.to_json())
        return
    what = "probe" if trained.embeddings is not None else "predictions"
    print(f"{what}: {probe_text(scores)}" if scores else f"no {what} scored: {why}")
    if result.note:
        print(f"note: {result.note}")
    print(f"run: {out}  ({result.train_seconds:.1f} s)")


def dataset_of(source: str) -> str:
    """Returns the dataset that `source` names, or nothing: a file's name chooses no settings."""
    return source.lower() if source.lower() in CATALOGUE else ""
