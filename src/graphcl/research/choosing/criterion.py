"""The criterion: which of several trials is likely to be good, by what they show without labels.

Good embeddings are rich: they use many directions. They know their node: its features can be told
from few examples. They are steady: little changes where a few links and values are missing. Each of
the three alone is easily fooled, by noise, by a copy of the features, by coarse clusters; no trial
that is fooled by one comes first in the others. So ranks are averaged.
`python -m benchmarks.choosing` compared this with other criteria, and docs/choosing.md shows them.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.evaluation.agreement import linear_cka
from graphcl.evaluation.recovery import few_shot_recovery
from graphcl.evaluation.unsupervised import effective_rank
from graphcl.research.choosing.evidence import Evidence

VERSIONS = 3  # damaged versions of the graph that a trial embeds
MEASURES = ("effective_rank", "own", "stability")

Array = npt.NDArray[Any]


def measure(evidence: Evidence, shown: Array) -> dict[str, float]:
    """Returns what a trial's embeddings, of `Evidence.observe`, show.

    - ``effective_rank``: how many directions they use.
    - ``own``: how well few examples suffice to tell the features of other nodes: a mean R².
    - ``stability``: how alike they are in the graph and in its damaged versions: a mean linear CKA.
    """
    z, *versions = shown
    return {
        "effective_rank": effective_rank(z),
        "own": few_shot_recovery(z, evidence.own),
        "stability": fmean(linear_cka(z, version) for version in versions),
    }


def merits(measures: Sequence[Mapping[str, float]]) -> list[float]:
    """Returns the merit of each trial among the others: its mean rank over `MEASURES`.

    It is between 0 and 1; the highest is picked. What was good on other graphs decides what is
    tried, and has no say here.
    """
    ranks = [_ranks([one[name] for one in measures]) for name in MEASURES]
    return [fmean(each) / len(measures) for each in zip(*ranks, strict=True)]


def _ranks(values: Sequence[float]) -> list[float]:
    """Returns ranks from 1; equal values share the mean of theirs."""
    given = np.asarray(values)
    below = (given[:, None] > given).sum(axis=1)
    equal = (given[:, None] == given).sum(axis=1)
    return [float(rank) for rank in below + (equal + 1) / 2]
