"""The recipe ``auto``: trials of the portfolio's recipes, and the one that is picked by them.

With a folder of checkpoints, finished trials are kept there, and so is the trial under way. A
training that is resumed goes on from these to the same pick.
"""

import json
import shutil
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphcl.distributed import current_share
from graphcl.errors import GraphError, ParameterError, RunError, TrainingWarning, require
from graphcl.estimator.choice import Choice, Trial, about_choice
from graphcl.files.atomic import write_whole
from graphcl.files.text import read_text
from graphcl.graphs.collection import GraphCollection, fingerprint, training_subgraph
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import ColumnScaling, fit_scaling
from graphcl.recipes import Recipe
from graphcl.recipes.recipe import recipe_keys
from graphcl.research.choosing.criterion import VERSIONS
from graphcl.research.choosing.evidence import Evidence
from graphcl.research.choosing.portfolio import candidates
from graphcl.research.choosing.search import Trained, search
from graphcl.runs.unfinished import CHOOSING
from graphcl.training import Checkpoints

TRIALS = "trials.json"


def choose_recipe(
    model: Any,
    base: Recipe,
    graph: Graph | GraphCollection,
    checkpoints: Checkpoints | None,
    *,
    resume: bool,
) -> tuple[Choice, Recipe]:
    """Trains all but one of the budget's trainings, and returns what was picked.

    Args:
        model: an estimator; trials have its keywords, which no candidate changes.
        base: the values of all keys that a candidate does not name.
        graph: what to train on.
        checkpoints: where to keep trials, how often, and whom to ask whether to stop.
        resume: go on with the trials that are there.

    Raises:
        GraphError: there are several graphs, or the graph has too few nodes.
        ParameterError: there are several processes.
        RunError: trials that are there are of another training.
        TrainingError: every trial failed.
    """
    if current_share().world > 1:
        raise ParameterError(
            "recipe auto: chooses in one process; choose with graphcl tune first, then train the "
            "recipe that it writes in several"
        )
    if isinstance(graph, GraphCollection):
        raise GraphError(f"{graph.name}: recipe auto needs a single graph")
    fixed = [key for key in recipe_keys() if getattr(model, key) is not None]
    listed = listed_candidates(graph, base, model.budget - 1, fixed=fixed, seed=model.seed)
    evidence = evidence_of(graph, base, seed=model.seed)
    about = about_choice(model, base) | {"graph": fingerprint((graph,))}
    folder = checkpoints.folder / CHOOSING if checkpoints else None
    trials = _read(folder / TRIALS, about) if folder and resume else []

    def train(recipe: Recipe, number: int) -> Trained:
        trial = type(model)(**model.get_params(deep=False) | {"recipe": recipe, "verbose": False})
        if checkpoints is None or folder is None:
            return fit_quietly(trial, graph)
        own = Checkpoints(
            folder / f"trial-{number}",
            every_seconds=checkpoints.every_seconds,
            every_epochs=checkpoints.every_epochs,
            keep=checkpoints.keep,
            stop=checkpoints.stop,
        )
        trained = fit_quietly(trial, graph, checkpoints=own, resume=resume)
        shutil.rmtree(own.folder, ignore_errors=True)
        return trained

    def keep(trial: Trial) -> None:
        trials.append(trial)
        if model.verbose:
            print(trial_text(trial, len(trials), len(listed)), file=sys.stderr, flush=True)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            kept = {"about": about, "trials": [one.to_json() for one in trials]}
            write_whole(folder / TRIALS, json.dumps(kept, allow_nan=False))

    choice = search(evidence, listed, train, known=tuple(trials), keep=keep, about=about)
    if model.verbose:
        print(f"picked {choice.reason}", file=sys.stderr, flush=True)
    return choice, listed[choice.picked][1]


def listed_candidates(
    graph: Graph, base: Recipe, count: int, *, fixed: list[str], seed: int
) -> list[Any]:
    """Returns what to try on a graph; a scaling that comes to another one is not tried twice."""
    require(count >= 1, "recipe auto", "budget", "at least 2", count + 1)
    scaling = fit_scaling("auto", [graph], inductive=base.inductive)
    plain = scaling.plain if isinstance(scaling, ColumnScaling) else ""

    def same(recipe: Recipe) -> Recipe:
        alike = plain and recipe.feature_scaling == "auto"
        return recipe.with_values(feature_scaling=plain) if alike else recipe

    return candidates(base, count, fixed=fixed, seed=seed, same=same)


def evidence_of(graph: Graph, base: Recipe, *, seed: int) -> Evidence:
    """Returns what trials show; of an inductive training, on its training nodes alone."""
    shown = training_subgraph(graph) if base.inductive else graph
    return Evidence.of(shown, seed=seed, versions=VERSIONS)


def fit_quietly(model: Any, graph: Graph, **options: Any) -> Trained:
    """Trains an estimator; whether it collapsed is told, not warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        model.fit(graph, **options)
    collapsed = any(sign.name == "collapse" for sign in model.health_.warnings)
    return Trained(model.set_output(transform="default").transform, collapsed)


def trial_text(trial: Trial, number: int, total: int) -> str:
    """Returns a line that says how a trial went."""
    shown = "  ".join(f"{name} {value:.3f}" for name, value in trial.measures.items())
    state = trial.failed or ("collapsed" if trial.collapsed else shown)
    return f"trial {number}/{total} {trial.name}: {state}  {trial.seconds:.1f} s"


def _read(path: Path, about: Mapping[str, Any]) -> list[Trial]:
    """Returns the trials that a file holds; none if there is no file."""
    if not path.exists():
        return []
    try:
        found = json.loads(read_text(path, RunError))
        trials = [Trial(**trial) for trial in found["trials"]]
        same = found["about"] == json.loads(json.dumps(about))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise RunError(f"{path}: damaged; begin anew") from None
    if not same:
        raise RunError(f"{path}: is of another training; begin anew or undo the change")
    return trials
