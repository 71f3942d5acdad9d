"""The search for a recipe: Optuna over the paper's ranges; the result is a recipe.

Trials are rows of a file, from which an interrupted search is rebuilt. The sampler gets a new seed
for every trial, derived from the trial's number, so a resumed search chooses the same trials as an
uninterrupted one. What is maximised never reads test labels: when an objective is built, it copies
the labels of training and validation nodes and drops the rest of `y`.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphcl.arrays import Array
from graphcl.errors import RunError, TrainingError, demand, import_extra
from graphcl.estimator.model import GraphCL
from graphcl.evaluation.splits import METRICS, metric_of, nodes_to_choose_by, validation_score
from graphcl.files.atomic import write_whole
from graphcl.graphs.collection import GraphCollection, labelled_fingerprint, labelled_nodes
from graphcl.graphs.graph import Graph
from graphcl.recipes import Recipe
from graphcl.research import rows
from graphcl.research.rows import Row
from graphcl.seeding import derive
from graphcl.settings import PROBE_STEPS
from graphcl.training import EpochMetrics

Data = Graph | GraphCollection
# The ranges of the paper's section 4.3. Weight decay also has values below the paper's range, where
# our search found the best recipes; the paper's larger values almost undo the training.
EPOCHS = (20, 50, 100, 150, 200)
CHOICES: dict[str, tuple[Any, ...]] = {
    "temperature": (0.1, 0.5, 0.8, 1.0),
    "weight_decay": (0.0, 0.0001, 0.001, 0.01, 0.05, 0.1, 0.15),
    "feature_scaling": ("none", "row", "auto"),
}
RANGES = {"edge_drop": (0.05, 0.75), "feature_drop": (0.2, 0.8)}
STEP = 0.01
SEARCHED = (*RANGES, *CHOICES, "epochs")
STARTUP = 8  # random trials before the sampler and the pruner use earlier results
TRIALS, RECIPE = "trials.jsonl", "recipe.toml"


@dataclass(frozen=True, eq=False)
class ValidationScore:
    """The probe's score on validation nodes, by which `compare` ranks too; see `metric_of`.

    With several labels per node, the probe is trained on `device` for `steps` steps.
    """

    data: Data
    node_type: str  # of a graph with types: that of the nodes
    nodes: Array
    y: Array
    train: Array
    device: torch.device | str
    steps: int

    @property
    def name(self) -> str:
        """``validation accuracy``, ``validation ROC-AUC`` or ``validation mean label AUC``."""
        return f"validation {METRICS[metric_of(self.y)]}"

    @classmethod
    def of(
        cls, data: Data, *, device: torch.device | str, steps: int = PROBE_STEPS
    ) -> "ValidationScore":
        """Takes the labels of training and validation nodes out of the data.

        Raises:
            GraphError: there are no labels, or a part has none.
        """
        judged = labelled_nodes(data)
        demand(
            judged.y is not None,
            f"{data.name}: has no labels to tune by; give some, or train the recipe default",
        )
        nodes, y, train = nodes_to_choose_by(judged)
        return cls(unlabelled(data), judged.name, nodes, y, train, device, steps)

    def __call__(self, embed: Callable[[Any], Any]) -> float:
        """Returns the score as a fraction."""
        z: Any = embed(self.data)
        z = z[self.node_type] if isinstance(z, dict) else z
        z = (np.concatenate(z) if isinstance(z, list) else z)[self.nodes]
        return validation_score(z, self.y, self.train, steps=self.steps, device=self.device)


def unlabelled(data: Data) -> Any:
    """Returns the data without labels; masks stay, because inductive training needs them."""
    if isinstance(data, GraphCollection):
        train, val, test = (
            tuple(map(unlabelled, part)) for part in (data.train, data.val, data.test)
        )
        return GraphCollection(train, val, test, name=data.name, note=data.note)
    nodes = {name: replace(one, y=None) for name, one in data.nodes.items()}
    return replace(data, nodes=nodes)


@dataclass(frozen=True)
class Search:
    """What to search, and where to store the trials.

    Attributes:
        objective: the score, and the data to train on.
        base: the recipe with the values of all keys that are not searched.
        fixed: keys that could be searched but keep the base's value.
        folder: where to write trials and the recipe.
        seed: decides the trials and every training.
        device: where to train.
    """

    objective: ValidationScore
    base: Recipe
    fixed: tuple[str, ...]
    folder: Path
    seed: int
    device: torch.device

    @property
    def about(self) -> Row:
        """What all trials of a file have in common."""
        data = self.objective.data
        graphs = data.graphs if isinstance(data, GraphCollection) else (data,)
        return {
            "graph": data.name,
            "content": labelled_fingerprint(graphs),
            "labels": zlib.crc32(np.ascontiguousarray(self.objective.y).tobytes()),
            "objective": self.objective.name,
            "base": asdict(self.base),
            "fixed": sorted(self.fixed),
            "seed": self.seed,
        }

    @property
    def path(self) -> Path:
        """The file of trials."""
        return self.folder / TRIALS

    @property
    def recipe_path(self) -> Path:
        """The recipe of the best trial."""
        return self.folder / RECIPE

    def recipe_of(self, row: dict[str, Any]) -> Recipe:
        """Returns the complete recipe of a trial."""
        return self.base.replace(**row["params"], epochs=row["epochs"])

    @property
    def marks(self) -> tuple[int, ...]:
        """Epochs at which a training is scored; the recipe gets the best of them."""
        return (self.base.epochs,) if "epochs" in self.fixed else EPOCHS


def tune(
    search: Search,
    trials: int,
    *,
    on_trial: Callable[[int, dict[str, Any], dict[str, Any]], None] = lambda *_: None,
) -> dict[str, Any]:
    """Runs trials until the file has `trials` of them, writes the best recipe, returns its row.

    A row has the trial's ``number``, from 0, the ``params`` that the sampler chose, its ``state``
    (``complete``, ``pruned`` or ``failed``, and then why), the ``score`` at the best number of
    ``epochs``, or None, all ``scores`` by epoch, and what the search is ``about``.

    Args:
        search: what to search.
        trials: total number of trials, including those already in the file.
        on_trial: called after each trial with its number (from 1), its row and the best row.

    Raises:
        RunError: the folder contains trials of another search, or every trial failed.
        MissingExtraError: Optuna is not installed.
    """
    optuna = import_extra("optuna", feature="graphcl tune", extra="tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = search.path
    known: list[dict[str, Any]] = [*rows.read(path)]
    for row in known:
        demand(
            row.get("about") == search.about,
            f"{path}: contains trials of another graph, recipe, seed or objective; "
            "choose another --out",
            RunError,
        )
    study = optuna.create_study(
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
    )
    for row in known:
        trial = optuna.trial.create_trial(
            state=_state(optuna, row["state"]),
            params=row["params"],
            distributions=_distributions(optuna, search),
            value=row["score"] if row["state"] == "complete" else None,
            intermediate_values={int(epoch): score for epoch, score in row["scores"].items()},
        )
        study.add_trial(trial)
    for number in range(len(known), trials):
        row = _trial(optuna, study, search, number)
        rows.append(path, row)
        known.append(row)
        on_trial(number + 1, row, best_row(known) or row)
    best = best_row(known)
    if best is None:
        raise RunError(f"{path}: every trial failed; the last: {known[-1]['failed']}")
    text = (
        f"# {search.objective.data.name}: the best of {len(known)} trials by "
        f"{search.objective.name} ({best['score']:.4f}), seed {search.seed}.\n"
        "# Test labels were not read. Use it: graphcl train GRAPH --recipe THIS_FILE\n"
    )
    write_whole(search.recipe_path, text + search.recipe_of(best).to_toml())
    return best


def best_row(found: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the complete trial with the highest score, the first one among equals."""
    complete = [row for row in found if row["state"] == "complete"]
    return max(complete, key=lambda row: row["score"] or 0.0, default=None)


def _trial(optuna: Any, study: Any, search: Search, number: int) -> dict[str, Any]:
    seed = derive(search.seed, "tune", number) % 2**32
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    trial = study.ask(_distributions(optuna, search))
    scores: dict[int, float] = {}
    state, failed = "complete", None
    try:
        _score(optuna, trial, search, scores)
    except optuna.TrialPruned:
        state = "pruned"
    except TrainingError as error:
        state, failed = "failed", str(error)
    epochs = max(scores, key=lambda epoch: (scores[epoch], -epoch), default=search.marks[0])
    value = scores[epochs] if state == "complete" else None
    study.tell(trial, value, state=_state(optuna, state))
    return {
        "number": number,
        "params": trial.params,
        "about": search.about,
        **({} if failed is None else {"failed": failed}),
        "state": state,
        "score": scores.get(epochs),
        "epochs": epochs,
        "scores": {str(epoch): score for epoch, score in scores.items()},
        **rows.provenance(search.device),
    }


def _score(optuna: Any, trial: Any, search: Search, scores: dict[int, float]) -> None:
    """Trains once and scores at every mark; raises `TrialPruned` if the trial is stopped early."""
    recipe = search.base.replace(**trial.params, epochs=max(search.marks))
    model = GraphCL(recipe, seed=search.seed, device=str(search.device), verbose=False)
    data = search.objective.data

    def score(metrics: EpochMetrics) -> None:
        if metrics.epoch not in search.marks:
            return
        scores[metrics.epoch] = search.objective(model.transform)
        model.encoder_.train()  # `transform` has left it in evaluation mode
        trial.report(scores[metrics.epoch], metrics.epoch)
        if metrics.epoch < max(search.marks) and trial.should_prune():
            raise optuna.TrialPruned

    model.fit(data, on_epoch=score)


def _distributions(optuna: Any, search: Search) -> dict[str, Any]:  # Optuna's own objects
    kinds = optuna.distributions
    ranges = {key: kinds.FloatDistribution(*ends, step=STEP) for key, ends in RANGES.items()}
    choices = {key: kinds.CategoricalDistribution(values) for key, values in CHOICES.items()}
    return {key: kind for key, kind in (ranges | choices).items() if key not in search.fixed}


def _state(optuna: Any, state: str) -> Any:
    return optuna.trial.TrialState["FAIL" if state == "failed" else state.upper()]
