"""`graphcl evaluate`: scores a run, or repeats its training with N seeds and scores each."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcl.cli.answers import RunArgument, TypeOption, open_run
from graphcl.cli.options import (
    DeviceOption,
    JsonOption,
    RunGraphOption,
    SetOption,
    parse_settings,
    print_result,
    print_warnings,
)
from graphcl.cli.processes import ProcessesOption, launch
from graphcl.cli.progress import ProbeStepsOption, probe, probe_progress, scores_text
from graphcl.cli.table_options import takes_tables
from graphcl.errors import RunError
from graphcl.runs import files as runs
from graphcl.runs.nodes import is_labelled
from graphcl.settings import PROBE_STEPS
from graphcl.tabular.options import TableOptions

if TYPE_CHECKING:
    from graphcl.graphs.collection import Labelled
    from graphcl.opening import AnyGraph


@takes_tables
def evaluate(
    run: RunArgument,
    repeats: Annotated[
        int, typer.Option("--runs", min=1, help="Repeat the training with N seeds.")
    ] = 1,
    node_type: TypeOption = None,
    graph: RunGraphOption = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    settings: SetOption = [],  # noqa: B006 (typer copies it)
    seed: Annotated[
        int | None, typer.Option(help="The first seed. (default: the run's seed)")
    ] = None,
    probe_steps: ProbeStepsOption = PROBE_STEPS,
    device: DeviceOption = "auto",
    processes: ProcessesOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Score a run by the probe: logistic regression on its frozen embeddings.

    A run of a supervised baseline is scored by its own predictions. On a graph with several splits,
    the probe's scores are means over all of them.

    With --runs N, the run's training is repeated with N consecutive seeds, and the mean ± standard
    deviation of the scores is reported. Several processes share the seeds.

    Tables that a run names are read only if you trained it yourself; otherwise give --graph. Of a
    typed graph, the nodes are those of --type, or of the only type with labels.

    Examples:

        graphcl evaluate runs/cora

        graphcl evaluate runs/cora --runs 10 --json

        graphcl evaluate from_a_friend --graph edges.csv --nodes nodes.csv --label topic
    """
    asked = open_run(run, ("evaluate",), graph, tables, device=device)
    folder = asked.type_folder(node_type, is_labelled)
    run = asked.folder
    launch(processes)
    from graphcl.devices import resolve_device
    from graphcl.distributed import apart, first_process, from_rank, group, local_device
    from graphcl.evaluation.failure import majority_sign
    from graphcl.evaluation.splits import over_splits, score_predictions
    from graphcl.graphs.graph import Graph
    from graphcl.research import summarise
    from graphcl.runs.graph import run_graph

    kept = asked.graph
    loaded: Labelled = kept
    if isinstance(kept, Graph) and not kept.is_plain:  # labels of the type that is meant, alone
        kind = asked.type_of(folder) or next(iter(kept.nodes))
        loaded = kept.nodes[kind]
        others = {name: replace(one, y=None) for name, one in kept.nodes.items()}
        kept = replace(kept, nodes=others | {kind: loaded})
    where = local_device(resolve_device(device))
    changed = parse_settings(settings)
    report: dict[str, Any] = {"run": str(run), "runs": repeats}
    if repeats == 1 and not changed and seed is None:
        if (run / runs.PREDICTIONS).exists():
            report |= asdict(score_predictions(runs.read_predictions(run), loaded))
        else:
            z, _ = asked.rows(asked.type_of(folder))
            report |= over_splits(
                lambda one: probe(z, one, steps=probe_steps, device=where), loaded
            )
    else:
        source = run_graph(run) if graph is None else graph
        train_all, run_seed = _trainings(run, kept, source, changed)
        first = run_seed if seed is None else seed
        seeds = list(range(first, first + repeats))
        with group(where, patience=timedelta(days=7)) as share:
            with apart(), probe_progress(probe_steps) as show:
                own = train_all(
                    seeds=seeds[share.rows(len(seeds))],
                    device=where,
                    probe_steps=probe_steps,
                    on_probe_step=show,
                    verbose=True,
                )
            encoded = json.dumps(own).encode()
            parts = [from_rank(encoded, share, rank=rank) for rank in range(share.world)]
        rows = [row for part in parts for row in json.loads(part)]
        report |= {"seeds": seeds, **summarise(rows)}
        if "runs_identical" in rows[0]:
            report["runs_identical"] = True
    if not first_process():
        return
    text = scores_text(report)
    config = runs.read_config(run, baselines=True)
    known = {**config.recipe, **config.settings, **changed}
    sign = majority_sign(report, known, config.method or "graphcl")
    report["warnings"] = [asdict(sign)] if sign else []
    if note := getattr(loaded, "note", ""):  # of several graphs, on every score of them
        report["note"] = note
        text += f"\nnote: {note}"
    print_result(report, text, as_json=as_json)
    print_warnings(report["warnings"])


def _trainings(
    run: Path, graph: "AnyGraph", source: str, changed: dict[str, str]
) -> tuple[Callable[..., list[dict[str, Any]]], int]:
    """Returns a function that repeats the run's training with `changed` settings, and its seed."""
    from graphcl.estimator.model import GraphCL
    from graphcl.research import dataset_of, find_system, repeat_method

    config = runs.read_config(run, baselines=True)
    if not config.method:
        model = GraphCL.read_from(run)
        recipe = model.recipe_.with_texts(**changed)
        return partial(repeat_method, "graphcl", graph, settings=asdict(recipe)), model.seed
    if config.seed is None:
        raise RunError(f"{run / runs.CONFIG}: [run] lacks the seed")
    dataset, settings = dataset_of(source), {**config.settings, **changed}
    find_system(config.method).method(dataset, **settings)  # refuses bad settings before training
    return partial(repeat_method, config.method, graph, dataset, settings=settings), config.seed
