"""`graphcl tune`: searches hyperparameters for a graph and writes a recipe."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli._shared.graphs import load_graph
from graphcl.cli._shared.interrupts import continues
from graphcl.cli._shared.options import (
    DeviceOption,
    JsonOption,
    SetOption,
    parse_settings,
    print_result,
)
from graphcl.cli._shared.progress import ProbeStepsOption
from graphcl.cli._shared.tables import takes_tables
from graphcl.devices import resolve_device
from graphcl.errors import RunError
from graphcl.evaluation.multilabel import STEPS
from graphcl.recipes import load_recipe, recipe_for
from graphcl.tabular.options import TableOptions
from graphcl.training.progress import duration
from graphcl.trials import rows
from graphcl.tuning.objective import build_objective
from graphcl.tuning.search import RECIPE, SEARCHED, TRIALS, Search, recipe_of
from graphcl.tuning.search import tune as run_search


@takes_tables
def tune(
    graph: Annotated[
        str, typer.Argument(help="A dataset (cora, …), a store, an .npz or a list of edges.")
    ],
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    trials: Annotated[int, typer.Option(min=1, help="Trials in total, with earlier ones.")] = 50,
    out: Annotated[
        Path | None, typer.Option(help="The folder for trials. (default: tuning/NAME)")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="The recipe of the keys that are not searched. (default: as in train)"),
    ] = None,
    settings: SetOption = [],  # noqa: B006 (typer copies it)
    unsupervised: Annotated[
        bool, typer.Option("--unsupervised", help="Use no labels; score the stability of clusters.")
    ] = False,
    prune: Annotated[bool, typer.Option(help="End trials that fall behind early.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the trials and trainings.")] = 0,
    probe_steps: ProbeStepsOption = STEPS,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Search the paper's ranges for good hyperparameters and write a recipe.

    Optuna proposes perturbation, temperature, weight decay and feature scaling. Each training is
    scored at each of the paper's epoch counts. A key that --set changes is not searched.

    The score is the probe's validation accuracy, averaged over the given and redrawn splits of
    training and validation nodes. Without labels, or with --unsupervised, it is the agreement
    (adjusted Rand index) between clusters of the embeddings of two damaged versions of the graph.
    Test labels are never read.

    Trials are stored in OUT/trials.jsonl, and the same command continues from them.

    Examples:

        graphcl tune cora --trials 30

        graphcl tune edges.csv --nodes nodes.csv --label topic --trials 20

        graphcl tune mine.npz --unsupervised --set epochs=50 --out tuning/mine

        graphcl train cora --recipe tuning/cora/recipe.toml
    """
    loaded = load_graph(graph, tables)
    changed = parse_settings(settings)
    chosen = recipe or recipe_for(graph.lower())
    where = resolve_device(device)
    folder = out if out is not None else Path("tuning") / loaded.name
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: is a file; --out must name a folder")
    search = Search(
        objective=build_objective(
            loaded, unsupervised=unsupervised, seed=seed, device=where, probe_steps=probe_steps
        ),
        base=load_recipe(chosen).with_values(**changed),
        fixed=tuple(key for key in SEARCHED if key in changed),
        folder=folder,
        seed=seed,
        device=where,
        prune=prune,
    )
    found = len(rows.read(folder / TRIALS))
    print(f"{loaded!r}; {search.objective.name}; {found} of {trials} trials found", file=sys.stderr)
    with continues("tune", "trials", folder / TRIALS):
        best = run_search(search, trials, on_trial=_report(found, trials))
    path, result = folder / RECIPE, recipe_of(search, best)
    name, score, number = search.objective.name, best["score"], best["number"]
    about = {"objective": name, "score": score, "trial": number, "trials": max(trials, found)}
    searched = ", ".join(f"{key} = {getattr(result, key)}" for key in SEARCHED)
    text = f"{name} {score:.4f} in trial {number + 1}: {searched}\nrecipe: {path}"
    print_result(about | {"recipe": vars(result), "out": str(path)}, text, as_json=as_json)


def _report(found: int, trials: int) -> Callable[[int, Any, Any], None]:
    began = time.perf_counter()

    def show(number: int, row: dict[str, Any], best: dict[str, Any]) -> None:
        rate = (time.perf_counter() - began) / (number - found)
        scores = (row["score"], best["score"])
        score, top = ("–" if one is None else f"{one:.4f}" for one in scores)
        text = f"trial {number}/{trials}: {row['state']} {score}  best {top}"
        remaining = duration(rate * (trials - number))
        print(f"{text}  {rate:.1f} s/trial  ETA {remaining}", file=sys.stderr, flush=True)

    return show
