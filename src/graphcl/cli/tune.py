"""`graphcl tune`: searches hyperparameters for a graph and writes a recipe."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from graphcl.settings import PROBE_STEPS, SEARCH_BUDGET
from graphcl.tabular.options import TableOptions

if TYPE_CHECKING:
    from graphcl.estimator.choice import Choice
    from graphcl.recipes import Recipe

TRIALS_WITH_LABELS = 50


@takes_tables
def tune(
    graph: Annotated[
        str | None, typer.Argument(help="A dataset (cora, …), a store, an .npz or a list of edges.")
    ] = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="Trials in total, with earlier ones. (default: 50; without labels 10)"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for trials. (default: tuning/NAME)")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="The recipe of the keys that are not searched. (default: as in train)"),
    ] = None,
    settings: SetOption = [],  # noqa: B006 (typer copies it)
    unsupervised: Annotated[
        bool, typer.Option("--unsupervised", help="Use no labels, even if there are any.")
    ] = False,
    prune: Annotated[bool, typer.Option(help="End trials that fall behind early.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the trials and trainings.")] = 0,
    probe_steps: ProbeStepsOption = PROBE_STEPS,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Search for good hyperparameters and write a recipe.

    With labels, Optuna proposes perturbation, temperature, weight decay and feature scaling in the
    paper's ranges. Each training is scored at each of the paper's epoch counts, by the probe's
    validation score: accuracy, ROC-AUC for two classes, or the mean AUC of the labels where a node
    has several. With one class per node it is the mean over the given and redrawn splits of
    training and validation nodes. Test labels are never read.

    Without labels, or with --unsupervised, recipes that were good on many graphs are trained, and
    one is picked by how well its embeddings survive damage to the graph and by what they tell of
    it. graphcl train --recipe auto does the same and trains the pick.

    A key that --set changes is not searched.

    Trials are stored in OUT/trials.jsonl, and the same command continues from them.

    Examples:

        graphcl tune cora --trials 30

        graphcl tune edges.csv --nodes nodes.csv --label topic --trials 20

        graphcl tune mine.npz --unsupervised --trials 10 --out tuning/mine

        graphcl train cora --recipe tuning/cora/recipe.toml
    """
    from graphcl.cli.graphs import FLATTENED, graph_name, load_graph
    from graphcl.graphs.graph import Graph
    from graphcl.opening import require_known
    from graphcl.recipes import load_recipe, recipe_for

    named = graph_name(graph, tables, "tune")
    if graph is not None and not tables.given():
        require_known(graph)
    changed = parse_settings(settings)
    base = load_recipe(recipe or recipe_for(named.lower())).with_texts(**changed)
    # What is misspelt has been said by now: only what follows waits for torch.
    from graphcl.devices import resolve_device
    from graphcl.research import rows
    from graphcl.research.auto_recipe import NAME, trial_text, tune_unlabelled
    from graphcl.research.tuning import RECIPE, SEARCHED, TRIALS, Search, ValidationScore, recipe_of
    from graphcl.research.tuning import tune as run_search

    loaded = load_graph(graph, tables)
    where = resolve_device(device)
    folder = out if out is not None else Path("tuning") / loaded.name
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: is a file; --out must name a folder")
    found = len(rows.read(folder / TRIALS))
    labelled = loaded.y is not None if not isinstance(loaded, Graph) else bool(loaded.labelled_type)
    if unsupervised or not labelled:
        if isinstance(loaded, Graph) and not loaded.is_plain:
            print(f"the search without labels {FLATTENED}", file=sys.stderr)
            loaded = loaded.flatten()
        print(
            f"{loaded!r}; {NAME}; {found} of {trials or SEARCH_BUDGET} trials found",
            file=sys.stderr,
        )
        with continues("tune", "trials", folder / TRIALS):
            choice, picked = tune_unlabelled(
                loaded,
                base,
                trials or SEARCH_BUDGET,
                fixed=tuple(changed),
                folder=folder,
                seed=seed,
                device=where,
                on_trial=lambda trial, number, _: print(
                    trial_text(trial, number, trials or SEARCH_BUDGET), file=sys.stderr, flush=True
                ),
            )
        _print_choice(choice, picked, folder / RECIPE, as_json=as_json)
        return
    trials = trials or TRIALS_WITH_LABELS
    search = Search(
        objective=ValidationScore.of(loaded, device=where, steps=probe_steps),
        base=base,
        fixed=tuple(key for key in SEARCHED if key in changed),
        folder=folder,
        seed=seed,
        device=where,
        prune=prune,
    )
    print(f"{loaded!r}; {search.objective.name}; {found} of {trials} trials found", file=sys.stderr)
    with continues("tune", "trials", folder / TRIALS):
        best = run_search(search, trials, on_trial=_report(found, trials))
    path, result = folder / RECIPE, recipe_of(search, best)
    name, score, number = search.objective.name, best["score"], best["number"]
    about = {"objective": name, "score": score, "trial": number, "trials": max(trials, found)}
    searched = ", ".join(f"{key} = {getattr(result, key)}" for key in SEARCHED)
    text = f"{name} {score:.4f} in trial {number + 1}: {searched}\nrecipe: {path}"
    print_result(about | {"recipe": vars(result), "out": str(path)}, text, as_json=as_json)


def _print_choice(choice: "Choice", recipe: "Recipe", path: Path, *, as_json: bool) -> None:
    from graphcl.research.auto_recipe import NAME

    values = choice.trials[choice.picked].values
    changed = ", ".join(f"{key} = {value}" for key, value in values.items()) or "as the base"
    print_result(
        {"objective": NAME, **choice.to_json(), "recipe": vars(recipe), "out": str(path)},
        f"picked {choice.reason}\n{changed}\nrecipe: {path}",
        as_json=as_json,
    )


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
