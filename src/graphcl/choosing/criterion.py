"""The criterion: which of several trials is likely to be good, by what they show without labels.

It asks what embeddings tell from few examples: the features of a node itself, and those around it.
Labels are mostly about one or the other, or both, and nobody knows which. An encoder that blurs the
one or forgets the other is found out.
`python -m benchmarks.choosing` compared this with other criteria, and docs/choosing.md shows them.
"""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from graphcl.choosing.evidence import Evidence
from graphcl.evaluation.recovery import few_shot_recovery
from graphcl.evaluation.unsupervised import effective_rank

Array = npt.NDArray[Any]


def measure(evidence: Evidence, shown: Array) -> dict[str, float]:
    """Returns what a trial's embeddings, of `Evidence.observe`, show.

    - ``effective_rank``: how many directions they use.
    - ``own``: how well few examples suffice to tell the features of other nodes: a mean R².
    - ``around``: the same for the mean features of their neighbours.
    """
    z = shown[0]
    return {
        "effective_rank": effective_rank(z),
        "own": few_shot_recovery(z, evidence.own),
        "around": few_shot_recovery(z, evidence.around),
    }


def merit(measures: Mapping[str, float]) -> float:
    """Returns the merit of a trial by its measures; the highest is picked.

    What was good on other graphs decides what is tried, and has no say here: in the study it made
    picks worse.
    """
    return measures["own"] + measures["around"]
