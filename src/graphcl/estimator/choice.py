"""The recipe ``auto``: how it is asked for, and what was tried and picked.

The search itself is `graphcl.research.auto_recipe`; this is the only door from the library to it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.recipes import Recipe
from graphcl.training import Checkpoints


@dataclass(frozen=True)
class Trial:
    """A candidate that was trained.

    Attributes:
        name: the candidate's.
        values: the keys of the recipe that it sets.
        measures: what it showed; empty if the training failed.
        seconds: how long it took.
        failed: why the training failed; empty if it did not.
        collapsed: whether its embeddings coincide or use few directions.
    """

    name: str
    values: Mapping[str, Any]
    measures: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    failed: str = ""
    collapsed: bool = False

    @property
    def eligible(self) -> bool:
        """Whether it may be picked."""
        return not self.failed and not self.collapsed

    def to_json(self) -> dict[str, Any]:
        """Returns it as results keep it."""
        return asdict(self)


@dataclass(frozen=True)
class Choice:
    """What was tried, and which trial was picked.

    Attributes:
        trials: in the order in which they were tried.
        merits: of each trial: the higher the better; None if it may not be picked.
        picked: the number of the trial that was picked, from 0.
        about: what decided what was tried, as plain values.
    """

    trials: tuple[Trial, ...]
    merits: tuple[float | None, ...]
    picked: int
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why the trial was picked, in one sentence."""
        trial, best = self.trials[self.picked], self.merits[self.picked]
        if best is None:
            return f"{trial.name}: all {len(self.trials)} trials collapsed; the least of them"
        others = sorted((one for one in self.merits if one is not None), reverse=True)
        second = f", the second {others[1]:.3f}" if len(others) > 1 else ""
        away = len(self.trials) - len(others)
        left = f"; {away} failed or collapsed" if away else ""
        return f"{trial.name}: merit {best:.3f}{second}, of {len(self.trials)} trials{left}"

    def to_json(self) -> dict[str, Any]:
        """Returns the choice as runs keep it."""
        rows = [
            trial.to_json() | {"merit": found}
            for trial, found in zip(self.trials, self.merits, strict=True)
        ]
        about = dict(self.about)
        return {"picked": self.picked, "reason": self.reason, "about": about, "trials": rows}


def choose_recipe(
    model: Any,
    base: Recipe,
    graph: Graph | GraphCollection,
    checkpoints: Checkpoints | None,
    *,
    resume: bool,
) -> tuple[Choice, Recipe]:
    """Returns what `graphcl.research.auto_recipe.choose_recipe` picked."""
    from graphcl.research import auto_recipe

    return auto_recipe.choose_recipe(model, base, graph, checkpoints, resume=resume)


def about_choice(model: Any, base: Recipe) -> dict[str, Any]:
    """Returns what decides a choice, besides the graph, as plain values."""
    fixed = list(model.changed_keys())
    return {"base": asdict(base), "fixed": fixed, "budget": model.budget, "seed": int(model.seed)}
