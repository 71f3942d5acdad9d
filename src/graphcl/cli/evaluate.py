"""`graphcl evaluate`: the probe on a run, or on N trainings like it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli.common import (
    DeviceOption,
    JsonOption,
    SetOption,
    load_graph,
    parse_settings,
    print_json,
)
from graphcl.cli.embed import run_graph
from graphcl.devices import resolve_device
from graphcl.errors import require
from graphcl.estimator import GraphCL
from graphcl.evaluation import linear_probe
from graphcl.experiments.repeat import repeat, summarise
from graphcl.io import runs


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    repeats: Annotated[int, typer.Option("--runs", help="Repeat the training with N seeds.")] = 1,
    settings: SetOption = [],  # noqa: B006 (typer copies it)
    seed: Annotated[
        int | None, typer.Option(help="The first seed. [default: the run's own]")
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Score a run by the probe: logistic regression on its frozen embeddings.

    With --runs N, the run's training is repeated with N consecutive seeds and the scores are
    given as mean ± standard deviation.

    Examples:

        graphcl evaluate runs/cora

        graphcl evaluate runs/cora --runs 10 --json
    """
    require(repeats >= 1, "evaluate", "--runs", "at least 1", repeats)
    graph = load_graph(run_graph(run))
    changed = parse_settings(settings)
    if repeats == 1 and not changed and seed is None:
        score = asdict(linear_probe(runs.read_embeddings(run), graph))
        report: dict[str, Any] = {"run": str(run), "runs": 1, **score}
    else:
        model = GraphCL.load(run)
        recipe = model.recipe_.with_values(**changed)
        first = model.seed if seed is None else seed
        seeds = list(range(first, first + repeats))
        rows = repeat(graph, recipe, seeds=seeds, device=resolve_device(device), verbose=True)
        report = {"run": str(run), "runs": repeats, "seeds": seeds, **summarise(rows)}
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def _print_report(report: dict[str, Any]) -> None:
    for name, label in (("accuracy", "accuracy"), ("macro_f1", "macro-F1")):
        score = report[name]
        if isinstance(score, dict):
            print(f"{label}: {100 * score['mean']:.2f} ± {100 * score['std']:.2f} %", end="  ")
        else:
            print(f"{label}: {100 * score:.2f} %", end="  ")
    runs_text = f"{report['runs']} runs" if report["runs"] > 1 else "1 run"
    print(f"({runs_text}, test nodes, {report['split']} split)")
