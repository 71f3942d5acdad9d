"""`graphcl tune`: searches hyperparameters for a graph and writes a recipe."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli.options import (
    DeviceOption,
    JsonOption,
    SetOption,
    parse_settings,
    print_result,
)
from graphcl.cli.processes import continues
from graphcl.cli.progress import ProbeStepsOption
from graphcl.cli.table_options import takes_tables
from graphcl.errors import RunError, duration
from graphcl.settings import PROBE_STEPS
from graphcl.tabular.options import TableOptions


@takes_tables
def tune(
    graph: Annotated[
        str | None, typer.Argument(help="A dataset (cora, …), a store, an .npz or a list of edges.")
    ] = None,
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
    seed: Annotated[int, typer.Option(help="Seed of the trials and trainings.")] = 0,
    probe_steps: ProbeStepsOption = PROBE_STEPS,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Search for good hyperparameters with labels and write a recipe.

    Optuna proposes perturbation, temperature, weight decay and feature scaling in the paper's
    ranges. Each training is scored at each of the paper's epoch counts, by the probe's validation
    score: accuracy, ROC-AUC for two classes, or the mean AUC of the labels where a node has
    several. With one class per node it is the mean over the given and redrawn splits of training
    and validation nodes. Test labels are never read.

    A key that --set changes is not searched. Trials that fall behind end early.

    Trials are stored in OUT/trials.jsonl, and the same command continues from them.

    Examples:

        graphcl tune cora --trials 30

        graphcl tune edges.csv --nodes nodes.csv --label topic --trials 20

        graphcl train cora --recipe tuning/cora/recipe.toml
    """
    from graphcl.cli.graphs import graph_name, load_graph
    from graphcl.opening import require_known
    from graphcl.recipes import load_recipe, recipe_for

    named = graph_name(graph, tables, "tune")
    if graph is not None and not tables.given():
        require_known(graph)
    changed = parse_settings(settings)
    base = load_recipe(recipe or recipe_for(named.lower())).with_texts(**changed)
    # What is misspelt has been said by now: only what follows waits for torch.
    from graphcl import research
    from graphcl.devices import resolve_device

    loaded = load_graph(graph, tables)
    where = resolve_device(device)
    folder = out if out is not None else Path("tuning") / loaded.name
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: is a file; --out must name a folder")
    search = research.Search(
        objective=research.ValidationScore.of(loaded, device=where, steps=probe_steps),
        base=base,
        fixed=tuple(key for key in research.SEARCHED if key in changed),
        folder=folder,
        seed=seed,
        device=where,
    )
    found, name = len(research.read(search.path)), search.objective.name
    print(f"{loaded!r}; {name}; {found} of {trials} trials found", file=sys.stderr)
    with continues("tune", "trials", search.path):
        best = research.tune(search, trials, on_trial=_report(found, trials))
    path, result = search.recipe_path, search.recipe_of(best)
    score, number = best["score"], best["number"]
    about = {"objective": name, "score": score, "trial": number, "trials": max(trials, found)}
    searched = ", ".join(f"{key} = {getattr(result, key)}" for key in research.SEARCHED)
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
