"""The search without labels: each candidate is trained and measured, then one is picked.

A trial is kept as soon as it is finished, so that an interrupted search goes on from there. The
pick depends on the trials alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Self

import torch

from graphcl.choosing.criterion import MEASURES, measure, merits
from graphcl.choosing.evidence import Embed, Evidence
from graphcl.choosing.portfolio import Candidate
from graphcl.errors import ParameterError, RunError, TrainingError
from graphcl.recipes import Recipe

BUDGET = 10  # trainings


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

    @classmethod
    def of(cls, trials: Sequence[Trial], about: Mapping[str, Any] = MappingProxyType({})) -> Self:
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
            return cls(tuple(trials), (None,) * len(trials), best, about)
        each = dict(zip(able, merits([trials[n].measures for n in able]), strict=True))
        best = max(able, key=lambda number: each[number])
        return cls(tuple(trials), tuple(each.get(n) for n in range(len(trials))), best, about)

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


@dataclass(frozen=True)
class Trained:
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
    return Choice.of(trials, about)
