"""The search without labels: the portfolio's recipes, each trained once; the result is a recipe.

`graphcl.research.choosing` says what is tried and how one is picked. Trials are rows of a file,
from which an interrupted search goes on.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from graphcl.errors import GraphError, RunError, TrainingError
from graphcl.estimator import GraphCL
from graphcl.estimator.choice import Choice, Trial
from graphcl.files.atomic import write_whole
from graphcl.graphs.collection import GraphCollection, fingerprint
from graphcl.graphs.graph import Graph
from graphcl.recipes import Recipe
from graphcl.research.choosing.choice import evidence_of, fit_quietly, listed_candidates
from graphcl.research.choosing.search import search
from graphcl.research.trials import rows
from graphcl.research.trials.rows import Row
from graphcl.research.tuning.objective import unlabelled
from graphcl.research.tuning.search import RECIPE, TRIALS

NAME = "choice without labels"


@dataclass(frozen=True)
class UnlabelledSearch:
    """What to search, and where to store the trials.

    Attributes:
        graph: what to train on; its labels are not looked at.
        base: the recipe with the values of all keys that a candidate does not name.
        fixed: keys that keep the base's value.
        folder: where to write trials and the recipe.
        seed: decides the trials and every training.
        device: where to train.
    """

    graph: Graph | GraphCollection
    base: Recipe
    fixed: tuple[str, ...]
    folder: Path
    seed: int
    device: torch.device

    @property
    def about(self) -> Row:
        """What all trials of a file have in common."""
        return {
            "graph": self.graph.name,
            "objective": NAME,
            "base": asdict(self.base),
            "fixed": sorted(self.fixed),
            "seed": self.seed,
        }


def tune_unlabelled(
    wanted: UnlabelledSearch,
    trials: int,
    *,
    on_trial: Callable[[int, Trial], None] = lambda *_: None,
) -> tuple[Choice, Recipe]:
    """Runs trials until the file has `trials` of them, writes the picked recipe, returns both.

    Args:
        wanted: what to search.
        trials: total number of trials, including those already in the file.
        on_trial: called after each trial with its number (from 1) and the trial.

    Raises:
        GraphError: there are several graphs, or the graph has too few nodes.
        RunError: the folder contains trials of another search, or every trial failed.
    """
    if isinstance(wanted.graph, GraphCollection):
        raise GraphError(f"{wanted.graph.name}: without labels, tuning needs a single graph")
    graph, base, path = unlabelled(wanted.graph), wanted.base, wanted.folder / TRIALS
    about = wanted.about | {"fingerprint": fingerprint((graph,))}
    known = [_trial(row, about, path) for row in rows.read(path)][:trials]
    listed = listed_candidates(graph, base, trials, fixed=list(wanted.fixed), seed=wanted.seed)
    evidence = evidence_of(graph, base, seed=wanted.seed)
    number = len(known)

    def train(recipe: Recipe, _: int) -> Any:
        return fit_quietly(GraphCL(recipe, seed=wanted.seed, device=str(wanted.device)), graph)

    def keep(trial: Trial) -> None:
        nonlocal number
        row = {"number": number, **trial.to_json(), "about": about}
        rows.append(path, row | rows.provenance(wanted.device))
        number += 1
        on_trial(number, trial)

    try:
        choice = search(evidence, listed, train, known=known, keep=keep, about=about)
    except TrainingError as error:
        raise RunError(f"{path}: {error}") from None
    recipe = listed[choice.picked][1]
    text = (
        f"# {graph.name}: picked without labels among {len(choice.trials)} trials, seed "
        f"{wanted.seed}.\n# {choice.reason}.\n"
        "# Use it: graphcl train GRAPH --recipe THIS_FILE\n"
    )
    write_whole(wanted.folder / RECIPE, text + recipe.to_toml())
    return choice, recipe


def _trial(row: Row, about: Row, path: Path) -> Trial:
    if row.get("about") != about:
        raise RunError(
            f"{path}: contains trials of another graph, recipe, seed or objective; "
            "choose another --out"
        )
    fields = Trial.__dataclass_fields__
    try:
        return Trial(**{name: row[name] for name in fields})  # type: ignore[arg-type]
    except KeyError as error:
        raise RunError(f"{path}: a trial lacks {error}") from None
