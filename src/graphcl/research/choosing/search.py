"""The search without labels: each candidate is trained and measured, then one is picked.

A trial is kept as soon as it is finished, so that an interrupted search goes on from there. The
pick depends on the trials alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from graphcl.errors import ParameterError, RunError, TrainingError
from graphcl.estimator.choice import Choice, Trial
from graphcl.recipes import Recipe
from graphcl.research.choosing.criterion import MEASURES, measure, merits
from graphcl.research.choosing.evidence import Embed, Evidence
from graphcl.research.choosing.portfolio import Candidate


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
    return pick(trials, about)
