r"""Signs that a training failed, in plain words, and what to try.

There are three: the loss does not move, the embeddings coincide, and the probe finds no more than
the largest class. The first two use no labels. Their bounds lie between short trainings on real
graphs that learned and those that collapsed, with room on both sides.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphcl.arrays import Array

LEAST_NODES = 20  # of fewer nodes nothing is said: chance decides
LEAST_EPOCHS = 5
STILL = 0.01  # share of the loss's range
MOST_COSINE = 0.95  # on the mean over pairs of nodes
LEAST_RANK = 4.0  # the effective one; graphs of 7 columns that learned had more

# What to try, by sign. A setting (key=value) is left out where it is in use, and a word on drop
# rates where nothing is dropped. "raw" is `train --method raw`, which no run of a baseline needs.
_DROPS = "lower edge_drop and feature_drop"
_ADVICE = {
    "loss": (
        "another learning_rate",
        "more epochs",
        "another temperature",
        _DROPS,
        "feature_scaling=auto",
    ),
    "collapse": (
        "feature_scaling=auto",
        "a lower temperature",
        "encoder=residual",
        "more features",
    ),
    "majority": ("encoder=residual", _DROPS, "more epochs"),
}
_RAW = (
    "the same training with --method raw and another --out: if that finds no more, the features do "
    "not know these labels"
)
_FEATURES = "other features or more labels: these do not tell the classes apart"


def advice(sign: str, settings: Mapping[str, Any] | None = None, method: str = "graphcl") -> str:
    """Returns what to try, without what is tried already.

    Args:
        sign: ``loss``, ``collapse`` or ``majority``.
        settings: of the recipe that was trained; None if they are not known.
        method: the system that was trained.
    """
    known = settings or {}
    if method != "graphcl":
        return _FEATURES if method == "raw" else _RAW
    drops = known.get("edge_drop", 1) or known.get("feature_drop", 1)
    listed = [
        one
        for one in _ADVICE[sign]
        if ("=" not in one or str(known.get(one.split("=")[0])) != one.split("=")[1])
        and (one != _DROPS or drops)
    ]
    ways = f"{', '.join(listed[:-1])} or {listed[-1]}" if len(listed) > 1 else listed[0]
    return f"{_RAW}; else {ways}" if sign == "majority" else ways


@dataclass(frozen=True)
class Sign:
    """A sign that a training failed.

    Attributes:
        name: ``loss``, ``collapse`` or ``majority``.
        message: what was found.
        advice: what to try.
    """

    name: str
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.message}. Try {self.advice}."


def loss_sign(
    losses: Sequence[float],
    span: tuple[float, float] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Sign | None:
    """Returns a sign if the loss did not fall, or ends where embeddings carry nothing.

    The first epoch is compared with the mean of the last tenth. A fall counts if it is more than
    `STILL` of the loss's range, and more than twice the noise between epochs.

    Args:
        losses: of every epoch.
        span: the loss of good embeddings, and of embeddings that carry nothing, if they are known.
            Otherwise the range is a tenth of the first loss.
        settings: of the recipe; advice leaves out what is in use.
    """
    if len(losses) < LEAST_EPOCHS:
        return None
    first, last = losses[0], float(np.mean(losses[-max(1, len(losses) // 10) :]))
    size = abs(first) / 10 if span is None else span[1] - span[0]
    steps = np.diff(losses[len(losses) // 2 :])  # in the second half there is the least trend
    noise = float(np.sqrt(np.mean(steps**2) / 2))
    least = max(STILL * size, 2 * noise)
    ends = f"from {first:.4f} in the first epoch to {last:.4f} in the last"
    if last > first + least:
        return Sign("loss", f"the loss became worse: {ends}", advice("loss", settings))
    if span is not None and last > span[1] - STILL * size:
        nothing = f"embeddings that carry nothing have {span[1]:.4f}"
        return Sign("loss", f"the loss ends at {last:.4f}; {nothing}", advice("loss", settings))
    if first - last < least:
        return Sign("loss", f"the loss hardly moved: {ends}", advice("loss", settings))
    return None


def collapse_sign(
    rank: float, cosine: float, *, allowed: float, settings: Mapping[str, Any] | None = None
) -> Sign | None:
    """Returns a sign if embeddings coincide, or use few directions.

    Args:
        rank: their effective rank.
        cosine: the mean cosine of two of them.
        allowed: the effective rank of the input features, or the number of dimensions if that is
            less. A third of it is enough: two columns do not give four directions.
        settings: of the recipe; advice leaves out what is in use.
    """
    if rank > 0 and cosine <= MOST_COSINE and rank >= least_rank(allowed):
        return None
    if rank == 0:
        message = "all embeddings are 0: the features tell nothing, as constant columns do"
        return Sign("collapse", message, "features that differ between nodes")
    what = "nearly coincide" if cosine > MOST_COSINE else "use few directions"
    facts = f"mean cosine of two nodes {cosine:.3f}, effective rank {rank:.1f}"
    return Sign("collapse", f"the embeddings {what}: {facts}", advice("collapse", settings))


def least_rank(allowed: float) -> float:
    """Returns the effective rank below which embeddings use few directions."""
    return min(LEAST_RANK, allowed / 3)


def majority_sign(
    scores: Mapping[str, Any] | None,
    settings: Mapping[str, Any] | None = None,
    method: str = "graphcl",
) -> Sign | None:
    """Returns a sign if a probe's or a system's scores are those of one class for all nodes.

    With two classes the ROC-AUC decides, if it is there: where one class is rare, a useful probe
    may still give all nodes the other. Otherwise the accuracy has to exceed the majority's share by
    one standard error. With several labels per node nothing is said: the probe gives a label above
    probability 0.5, so where labels are rare, useful embeddings can have a lower micro-F1 than a
    guess that is the same for all nodes.
    """
    if not scores or "val_micro_f1" in scores or scores.get("majority") is None:
        return None
    accuracy, majority, area = _mean(scores["accuracy"]), scores["majority"], scores.get("roc_auc")
    tested = int(scores["nodes"][2])
    if majority >= 1 or tested < LEAST_NODES:
        return None
    if area is not None:
        area = _mean(area)
        larger = round(majority * tested)
        error = math.sqrt((tested + 1) / (12 * larger * max(1, tested - larger)))
        if area > 0.5 + 2 * error:
            return None
        message = f"the probe cannot tell the two classes apart: ROC-AUC {area:.3f}"
        return Sign("majority", message, advice("majority", settings, method))
    if accuracy > majority + math.sqrt(majority * (1 - majority) / tested):
        return None
    message = (
        f"the accuracy, {100 * accuracy:.1f} %, is not clearly above the share of the largest "
        f"class, {100 * majority:.1f} %"
    )
    return Sign("majority", message, advice("majority", settings, method))


def _mean(score: Any) -> float:
    return float(score["mean"] if isinstance(score, Mapping) else score)


def majority_share(y: Array) -> float:
    """Returns the best score of one answer for all nodes.

    That is the share of the largest class ``[nodes]``, or, for labels ``[nodes, labels]`` of 0 and
    1, the highest micro-F1 of giving all nodes the same labels.
    """
    if y.ndim == 1:
        return float(np.unique(y, return_counts=True)[1].max() / len(y))
    counts = np.sort(y.sum(axis=0, dtype=np.float64))[::-1]
    given = len(y) * np.arange(1, len(counts) + 1)
    # For any number of labels, the most frequent ones are the best.
    scores = 2 * np.cumsum(counts) / (given + counts.sum())
    return float(scores.max(initial=0))
