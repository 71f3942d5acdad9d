"""The criterion: which of several trials is likely to be good, by what they show without labels.

`python -m benchmarks.choosing` compared it with others on many graphs; docs/choosing.md has the
table, losers included.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.choosing.evidence import Evidence
from graphcl.evaluation.agreement import linear_cka
from graphcl.evaluation.recovery import few_shot_recovery, principal_targets
from graphcl.evaluation.unsupervised import effective_rank

Array = npt.NDArray[Any]
WEIGHTS = {"stability": 0.7, "around": 0.7}  # of the measures; the prior's is 1


def measure(evidence: Evidence, shown: Array) -> dict[str, float]:
    """Returns what a trial's embeddings of `Evidence.observe` show.

    - ``effective_rank``: how many directions they use.
    - ``stability``: the linear CKA of the embeddings in the graph with those in a damaged version.
    - ``around``: how well the features of a node's neighbours are told from few examples.
    """
    z = shown[0]
    stability = [linear_cka(z, version) for version in shown[1:]]
    return {
        "effective_rank": effective_rank(z),
        "stability": float(np.mean(stability)),
        "around": few_shot_recovery(z, principal_targets(evidence.features_around())),
    }


def merits(trials: Sequence[tuple[float, Mapping[str, float]]]) -> list[float]:
    """Returns the merit of each trial, given its prior and its measures; higher is better.

    Prior and measures are standardised over the trials, and summed with `WEIGHTS`.
    """
    total = _standardised([prior for prior, _ in trials])
    for name, weight in WEIGHTS.items():
        total = total + weight * _standardised([measures[name] for _, measures in trials])
    return [float(merit) for merit in total]


def _standardised(values: Sequence[float]) -> Array:
    array = np.asarray(values, np.float64)
    spread = array.std()
    standard: Array = (array - array.mean()) / spread if spread > 0 else np.zeros(len(array))
    return standard
