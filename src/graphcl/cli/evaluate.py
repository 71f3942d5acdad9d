"""`graphcl evaluate`: the probe on a run, or on N trainings like it."""

import json
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli.common import (
    DeviceOption,
    JsonOption,
    SetOption,
    load_run_graph,
    note,
    parse_settings,
    print_json,
)
from graphcl.cli.launch import ProcessesOption, launch
from graphcl.cli.probing import ProbeStepsOption, probe, probe_progress, report_text
from graphcl.devices import resolve_device
from graphcl.distributed import apart, first_process, from_rank, group, local_device
from graphcl.errors import require
from graphcl.estimator import GraphCL
from graphcl.evaluation.multilabel import STEPS
from graphcl.experiments.repeat import repeat, summarise
from graphcl.io import runs


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    repeats: Annotated[int, typer.Option("--runs", help="Repeat the training with N seeds.")] = 1,
    settings: SetOption = [],  # noqa: B006 (typer copies it)
    seed: Annotated[
        int | None, typer.Option(help="The first seed. (default: the run's own)")
    ] = None,
    probe_steps: ProbeStepsOption = STEPS,
    device: DeviceOption = "auto",
    processes: ProcessesOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Score a run by the probe: logistic regression on its frozen embeddings.

    With --runs N, the run's training is repeated with N consecutive seeds and the scores are
    given as mean ± standard deviation. Several processes share the seeds.

    Examples:

        graphcl evaluate runs/cora

        graphcl evaluate runs/cora --runs 10 --json
    """
    require(repeats >= 1, "evaluate", "--runs", "at least 1", repeats)
    launch(processes)
    graph = load_run_graph(run)
    where = local_device(resolve_device(device))
    changed = parse_settings(settings)
    if repeats == 1 and not changed and seed is None:
        z = runs.read_embeddings(run)
        score = asdict(probe(z, graph, steps=probe_steps, device=where))
        report: dict[str, Any] = {"run": str(run), "runs": 1, **score}
    else:
        model = GraphCL.load(run)
        recipe = model.recipe_.with_values(**changed)
        first = model.seed if seed is None else seed
        seeds = list(range(first, first + repeats))
        with group(where, patience=timedelta(days=7)) as share:
            with apart(), probe_progress(probe_steps) as show:
                own = repeat(
                    graph,
                    recipe,
                    seeds=seeds[share.rows(len(seeds))],
                    device=where,
                    probe_steps=probe_steps,
                    on_probe_step=show,
                    verbose=True,
                )
            said = json.dumps(own).encode()
            every = [from_rank(said, share, rank=rank) for rank in range(share.world)]
        rows = [row for part in every for row in json.loads(part)]
        report = {"run": str(run), "runs": repeats, "seeds": seeds, **summarise(rows)}
    if not first_process():
        return
    report |= note(graph)
    if as_json:
        print_json(report)
        return
    print(report_text(report))
    if "note" in report:
        print(f"note: {report['note']}")
