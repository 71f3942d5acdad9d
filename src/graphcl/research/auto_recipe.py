"""The choice of a recipe without labels: what is tried, how one is picked, where trials are kept.

Recipes are tried that were good on many graphs. `portfolio.toml` lists them; it is written by
`python -m benchmarks.choosing portfolio` from the rows of a study. To try something else as well,
add a table to it: a name, and keys of a recipe.

A trial is kept as soon as it is finished, as a row of a file, so that an interrupted search goes on
from there. The pick depends on the trials alone. `GraphCL("auto")` and `graphcl tune` without
labels both choose here.
"""

import json
import shutil
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch

from graphcl.devices import resolve_device
from graphcl.distributed import current_share
from graphcl.errors import (
    GraphError,
    ParameterError,
    RecipeError,
    RunError,
    TrainingError,
    TrainingWarning,
    require,
)
from graphcl.estimator import GraphCL
from graphcl.estimator.choice import Choice, Trial, about_choice
from graphcl.files.atomic import write_whole
from graphcl.graphs.collection import GraphCollection, fingerprint, training_subgraph
from graphcl.graphs.graph import Graph
from graphcl.graphs.scaling import ColumnScaling
from graphcl.graphs.tensors import prepare
from graphcl.recipes import Recipe
from graphcl.recipes.recipe import check_keys
from graphcl.research import rows
from graphcl.research.evidence import MEASURES, VERSIONS, Embed, Evidence, measure, merits
from graphcl.research.tuning import OTHER_SEARCH, RECIPE, TRIALS, Data, unlabelled
from graphcl.seeding import derive
from graphcl.training import Checkpoints
from graphcl.training_run import CHOOSING

NAME = "choice without labels"
FILE = "portfolio.toml"
# What is drawn beyond the portfolio.
CHOICES: dict[str, tuple[Any, ...]] = {
    "encoder": ("mean", "residual", "gcn"),
    "layers": (1, 2),
    "edge_drop": (0.1, 0.2, 0.3, 0.5),
    "feature_drop": (0.2, 0.3, 0.5, 0.7),
    "temperature": (0.2, 0.5, 0.8, 1.0),
    "feature_scaling": ("none", "row", "auto"),
}
DRAWS = 20  # in a row that give nothing new; then there is nothing left to try


@dataclass(frozen=True)
class Candidate:
    """A recipe to try.

    Attributes:
        name: its name in results.
        values: keys of the recipe; those that it does not name are the base's.
    """

    name: str
    values: Mapping[str, Any]


def load_portfolio() -> tuple[Candidate, ...]:
    """Returns the table, in the order in which it is tried.

    Raises:
        RecipeError: a candidate has a key that no recipe has.
    """
    text = (resources.files("graphcl.research") / FILE).read_text()
    found = []
    for table in tomllib.loads(text)["trial"]:
        name = table.pop("name")
        check_keys(table, where=f"{FILE}: {name}")
        found.append(Candidate(name, table))
    if not found:
        raise RecipeError(f"{FILE}: holds no candidate")
    return tuple(found)


def candidates(
    base: Recipe,
    count: int,
    *,
    fixed: Collection[str] = (),
    seed: int = 0,
    same: Callable[[Recipe], Recipe] = lambda recipe: recipe,
) -> list[tuple[Candidate, Recipe]]:
    """Returns up to `count` different recipes: the portfolio's first, then drawn ones.

    Args:
        base: has the values of all keys that a candidate does not name.
        count: how many.
        fixed: keys that keep the base's value whatever a candidate says.
        seed: decides what is drawn.
        same: returns a recipe that trains alike. Candidates that come to the same as an earlier one
            are left out; there are fewer if nothing else is left.
    """
    found: list[tuple[Candidate, Recipe]] = []
    seen: set[Recipe] = set()

    def add(candidate: Candidate) -> bool:
        kept = {key: value for key, value in candidate.values.items() if key not in fixed}
        recipe = base.replace(**kept)
        new = same(recipe) not in seen
        if new and len(found) < count:
            seen.add(same(recipe))
            found.append((Candidate(candidate.name, kept), recipe))
        return new

    for candidate in load_portfolio():
        add(candidate)
    random = np.random.default_rng(derive(seed, "candidates") % 2**63)
    failures = number = 0
    while len(found) < count and failures < DRAWS:
        drawn = {key: kinds[random.integers(len(kinds))] for key, kinds in CHOICES.items()}
        new = add(Candidate(f"drawn-{number + 1}", drawn))
        number, failures = number + new, 0 if new else failures + 1
    return found


def pick(trials: Sequence[Trial], about: Mapping[str, Any] = MappingProxyType({})) -> Choice:
    """Picks the trial with the highest merit, the first among equals.

    If all have collapsed, the one of the highest effective rank is picked; its training warns.

    Raises:
        TrainingError: every trial failed.
    """
    trained = [number for number, trial in enumerate(trials) if not trial.failed]
    if not trained:
        raise TrainingError(f"choosing: every trial failed; the last: {trials[-1].failed}")
    able = [number for number in trained if trials[number].eligible]
    if not able:
        best = max(trained, key=lambda number: trials[number].measures["effective_rank"])
        return Choice(tuple(trials), (None,) * len(trials), best, about)
    each = dict(zip(able, merits([trials[n].measures for n in able]), strict=True))
    best = max(able, key=lambda number: each[number])
    return Choice(tuple(trials), tuple(each.get(n) for n in range(len(trials))), best, about)


class Trained(NamedTuple):
    """A training as the search sees it: how it embeds, and whether it says that it collapsed."""

    embed: Embed
    collapsed: bool


def search(
    evidence: Evidence,
    listed: Sequence[tuple[Candidate, Recipe]],
    train: Callable[[Recipe, int], Trained],
    *,
    known: Sequence[Trial] = (),
    keep: Callable[[Trial], object] = lambda _: None,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> Choice:
    """Trains the candidates that are not yet `known`, and picks one.

    Args:
        evidence: of the graph.
        listed: what to try, of `candidates`.
        train: trains a recipe; it is also told the trial's number, from 0.
        known: trials of the same list that were kept before.
        keep: called with each new trial.
        about: what the choice says of what decided it.

    Raises:
        TrainingError: every trial failed.
        RunError: a known trial is not of this list.
    """
    trials = list(known)
    for trial, (candidate, _) in zip(trials, listed, strict=False):
        if (trial.name, dict(trial.values)) != (candidate.name, dict(candidate.values)):
            raise RunError(
                f"choosing: the trial {trial.name} was kept where {candidate.name} is tried now; "
                "begin anew"
            )
        if not trial.failed and not set(MEASURES) <= set(trial.measures):
            raise RunError(
                f"choosing: the trial {trial.name} was kept by another version of graphcl; "
                "begin anew"
            )
    for number in range(len(trials), len(listed)):
        candidate, recipe = listed[number]
        began = time.perf_counter()
        named = (candidate.name, dict(candidate.values))
        try:
            trained = train(recipe, number)
            measures = measure(evidence, evidence.observe(trained.embed))
            collapsed = trained.collapsed
            failed = ""
        except (TrainingError, ParameterError, torch.OutOfMemoryError) as error:
            # Some encoders need the whole graph, and some more memory than others.
            measures, collapsed, failed = {}, False, str(error).partition("\n")[0]
        trial = Trial(*named, measures, time.perf_counter() - began, failed, collapsed)
        keep(trial)
        trials.append(trial)
    return pick(trials, about)


def listed_candidates(
    graph: Graph, base: Recipe, count: int, *, fixed: Collection[str], seed: int
) -> list[Any]:
    """Returns what to try on a graph; a scaling that comes to another one is not tried twice."""
    require(count >= 1, "recipe auto", "budget", "at least 2", count + 1)
    scaling = prepare([graph], "auto", inductive=base.inductive)[0].scaling.table
    plain = scaling.plain if isinstance(scaling, ColumnScaling) else ""

    def same(recipe: Recipe) -> Recipe:
        alike = plain and recipe.feature_scaling == "auto"
        return recipe.replace(feature_scaling=plain) if alike else recipe

    return candidates(base, count, fixed=fixed, seed=seed, same=same)


def fit_quietly(model: Any, graph: Graph, **options: Any) -> Trained:
    """Trains an estimator without warnings; the result says whether it collapsed."""
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


def choose(
    graph: Graph,
    base: Recipe,
    count: int,
    train: Callable[[Recipe, int], Trained],
    *,
    fixed: Collection[str],
    seed: int,
    about: Mapping[str, Any],
    path: Path | None,
    device: torch.device,
    others: str,
    on_trial: Callable[[Trial, int, int], object] = lambda *_: None,
) -> tuple[Choice, Recipe]:
    """Runs the trials that a file does not hold yet, and returns what is picked of all.

    Args:
        graph: what to train on.
        base: the values of all keys that a candidate does not name.
        count: how many trials there are in all.
        train: trains a recipe; it is also told the trial's number, from 0.
        fixed: keys that keep the base's value.
        seed: decides what is drawn and what damaged versions of the graph lack.
        about: what decided the trials; a file with trials of anything else is refused.
        path: the file of trials; None keeps none.
        device: where trials are trained; it is noted in the rows.
        others: what the error says of trials of anything else.
        on_trial: called after each trial with it, its number (from 1) and the number of trials.
    """
    kept = _kept(path, about, others)[:count] if path is not None else []
    listed = listed_candidates(graph, base, count, fixed=fixed, seed=seed)
    # Of an inductive training, trials are compared on its training nodes alone.
    shown = training_subgraph(graph) if base.inductive else graph
    evidence = Evidence.of(shown, seed=seed, versions=VERSIONS)
    done = len(kept)

    def keep(trial: Trial) -> None:
        nonlocal done
        if path is not None:
            row = {"number": done, **trial.to_json(), "about": about} | rows.provenance(device)
            rows.append(path, row)
        done += 1
        on_trial(trial, done, len(listed))

    choice = search(evidence, listed, train, known=kept, keep=keep, about=about)
    return choice, listed[choice.picked][1]


def _kept(path: Path, about: Mapping[str, Any], others: str) -> list[Trial]:
    """Returns the trials of a file; none if there is no file."""
    kept, same = [], json.loads(json.dumps(about))
    for row in rows.read(path):
        try:
            kept.append(Trial(**{name: row[name] for name in Trial.__dataclass_fields__}))  # type: ignore[arg-type]
        except KeyError as error:
            raise RunError(f"{path}: damaged; begin anew: a trial lacks {error}") from None
        if row.get("about") != same:
            raise RunError(f"{path}: {others}")
    return kept


def choose_recipe(
    model: GraphCL,
    base: Recipe,
    graph: Data,
    checkpoints: Checkpoints | None,
    *,
    resume: bool,
) -> tuple[Choice, Recipe]:
    """Trains all but one of the trainings that recipe ``auto`` may take, and returns the pick.

    With a folder of checkpoints, finished trials are kept there, and so is the trial under way. A
    training that is resumed goes on from these to the same pick.

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
    folder = checkpoints.folder / CHOOSING if checkpoints else None
    if folder is not None and not resume:
        (folder / TRIALS).unlink(missing_ok=True)

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

    def show(trial: Trial, number: int, total: int) -> None:
        if model.verbose:
            print(trial_text(trial, number, total), file=sys.stderr, flush=True)

    choice, recipe = choose(
        graph,
        base,
        model.budget - 1,
        train,
        fixed=model.changed_keys(),
        seed=model.seed,
        about=about_choice(model, base) | {"graph": fingerprint((graph,))},
        path=folder and folder / TRIALS,
        device=resolve_device(model.device),
        others="is of another training; begin anew or undo the change",
        on_trial=show,
    )
    if model.verbose:
        print(f"picked {choice.reason}", file=sys.stderr, flush=True)
    return choice, recipe


def tune_unlabelled(
    data: Data,
    base: Recipe,
    trials: int,
    *,
    fixed: Sequence[str] = (),
    folder: Path,
    seed: int,
    device: torch.device,
    on_trial: Callable[[Trial, int, int], object] = lambda *_: None,
) -> tuple[Choice, Recipe]:
    """Runs trials until the folder has so many, writes the picked recipe, and returns both.

    Args:
        data: what to train on; its labels are not looked at.
        base: the recipe with the values of all keys that a candidate does not name.
        trials: total number of trials, including those already in the folder.
        fixed: keys that keep the base's value.
        folder: where to write trials and the recipe.
        seed: decides the trials and every training.
        device: where to train.
        on_trial: see `choose`.

    Raises:
        GraphError: there are several graphs, or the graph has too few nodes.
        RunError: the folder contains trials of another search, or every trial failed.
    """
    if isinstance(data, GraphCollection):
        raise GraphError(f"{data.name}: without labels, tuning needs a single graph")
    graph, path = unlabelled(data), folder / TRIALS
    about = {
        "graph": graph.name,
        "objective": NAME,
        "base": asdict(base),
        "fixed": sorted(fixed),
        "seed": seed,
        "fingerprint": fingerprint((graph,)),
    }
    try:
        choice, recipe = choose(
            graph,
            base,
            trials,
            lambda recipe, _: fit_quietly(
                GraphCL(recipe, seed=seed, device=str(device), verbose=False), graph
            ),
            fixed=fixed,
            seed=seed,
            about=about,
            path=path,
            device=device,
            others=OTHER_SEARCH,
            on_trial=on_trial,
        )
    except TrainingError as error:
        raise RunError(f"{path}: {error}") from None
    text = (
        f"# {graph.name}: picked without labels among {len(choice.trials)} trials, seed "
        f"{seed}.\n# {choice.reason}.\n"
        "# Use it: graphcl train GRAPH --recipe THIS_FILE\n"
    )
    write_whole(folder / RECIPE, text + recipe.to_toml())
    return choice, recipe
