r"""How far a score that was measured on few nodes may be from the truth.

An accuracy is a share: k of n held-out nodes are right. Its standard error would be 0 where all are
right, although ten nodes cannot tell 100 % from 90 %. So the interval is Wilson's (1927), which
never has the width 0 and stays within 0 and 1:

.. math:: \frac{p + z^2 / 2n \pm z \sqrt{p (1 - p) / n + z^2 / 4n^2}}{1 + z^2 / n} .

Two things make n smaller than the number of nodes. If nodes have weights, n is the *effective*
number: that of equally weighted nodes whose share varies as much. And held-out nodes are scored by
models that lack a fold of the labels: with k folds, n is multiplied by (k − 1) / k. From so few
nodes the variance is not known either, so z is Student's, with n − 1 degrees of freedom.
`benchmarks/honesty.py` measures how often these intervals hold the accuracy on unlabelled nodes.
"""

import numpy as np

from graphcl.arrays import Array

SURE = 0.95  # how often an interval is to hold the truth
_APART = 1e-9  # of an end from the area itself, where the equation of the end holds as well


def effective_nodes(right: Array, weight: Array, classes: Array) -> float:
    """Returns how many equally weighted nodes have a share that varies as much.

    Weights say how frequent classes are, so nodes are taken as drawn class by class. A right and a
    wrong answer are added to each class (Laplace): two right ones of two do not make it certain.

    Args:
        right: 0/1 of each node.
        weight: how much each counts; the same within a class.
        classes: the number of the class of each.
    """
    if np.ptp(weight) <= 1e-9 * weight.max():
        return float(len(weight))
    counts = np.bincount(classes)
    present = counts > 0
    counts = counts[present]
    frequency = np.bincount(classes, weight)[present] / weight.sum()
    hits = np.bincount(classes, right)[present]
    shares = (hits + 1) / (counts + 2)
    common = float(frequency @ shares)
    variance = float((frequency**2 * shares * (1 - shares) / counts).sum())
    return min(common * (1 - common) / variance, float(len(weight)))


def share_interval(share: float, nodes: float, sure: float = SURE) -> tuple[float, float]:
    """Returns between which values a share lies.

    Args:
        share: that was measured.
        nodes: on how many nodes; see `effective_nodes`.
        sure: how often the interval is to hold the truth.
    """
    if nodes <= 0:
        return 0.0, 1.0
    z = _quantile(nodes, sure)
    shrink = 1 + z * z / nodes
    middle = (share + z * z / (2 * nodes)) / shrink
    half = z / shrink * float(np.sqrt(share * (1 - share) / nodes + (z / (2 * nodes)) ** 2))
    return max(0.0, middle - half), min(1.0, middle + half)


def area_interval(
    area: float, wanted: float, others: float, sure: float = SURE
) -> tuple[float, float]:
    """Returns between which values a ROC-AUC lies (Newcombe, 2006, method 5).

    An area A has the variance of Hanley and McNeil (1982). As in Wilson's interval, it is taken at
    the end of the interval, so that an area of 1 has an interval, too.

    Args:
        area: that was measured.
        wanted: the number of nodes of the wanted class.
        others: the number of the others.
        sure: how often the interval is to hold the truth.
    """
    from scipy.optimize import brentq

    if wanted <= 0 or others <= 0:
        return 0.0, 1.0
    z = _quantile(wanted + others, sure)
    pairs, mean = wanted * others, (wanted + others) / 2

    def deviation(end: float) -> float:
        more = max(mean - 1, 0.0) * ((1 - end) / (2 - end) + end / (1 + end))
        return z * float(np.sqrt(max(0.0, end * (1 - end)) * (1 + more) / pairs))

    def beyond(end: float) -> float:  # how much farther than its deviation an end is away
        return abs(area - end) - deviation(end)

    low = 0.0 if area <= _APART else float(brentq(beyond, 0.0, area - _APART))
    high = 1.0 if area >= 1 - _APART else float(brentq(beyond, area + _APART, 1.0))
    return low, high


def _quantile(nodes: float, sure: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(max(nodes - 1, 1.0), (1 + sure) / 2))
