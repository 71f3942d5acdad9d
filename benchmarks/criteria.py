"""The trials of `benchmarks.choosing`, and how well each criterion chooses among them.

Everything here reads rows; nothing trains. `table` is what docs/choosing.md shows, `portfolio_text`
the portfolio that `graphcl.research.auto_recipe` tries.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata, spearmanr
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from graphcl.errors import GraphError
from graphcl.evaluation.nearest import nearest, unit_rows
from graphcl.evaluation.probe import standardiser
from graphcl.evaluation.splits import mean_auc
from graphcl.evaluation.unsupervised import sampled_rows
from graphcl.files.text import format_toml
from graphcl.graphs.graph import Graph
from graphcl.research import rows
from graphcl.research.auto_recipe import FILE
from graphcl.research.damage import missing_features, missing_links
from graphcl.research.evidence import alike
from graphcl.research.evidence import merits as shipped_merits
from graphcl.research.rows import Row
from graphcl.settings import ENCODER_OPTIONS, SEARCH_BUDGET

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/choosing.jsonl"
STUDY = ROOT / "benchmarks/results/choosing_study.jsonl"  # all criteria, around an earlier default
PAGE, BEGIN, END = ROOT / "docs/choosing.md", "<!-- criteria -->\n", "<!-- end -->"
TODAY = "<!-- today -->\n"
TABLE = ROOT / "src/graphcl/research" / FILE
COLUMNS = ("graph", "trial", "seed")
NEIGHBOURS = 10
# Fractions that the damaged versions lack: about what the paper advises to drop.
MISSING_LINKS, MISSING_FEATURES = 0.2, 0.5
CLUSTERS, STARTS = 8, 3  # of k-means; clusters at most
SAMPLE = 10_000  # at most so many nodes are clustered
LEAST_FRACTION = 0.02  # of nodes outside the largest cluster; with fewer, there is one cluster

Array = npt.NDArray[Any]
Merits = Callable[[list[Row], Mapping[str, float]], Array]


def _trial(encoder: str, scaling: str = "auto", **other: object) -> dict[str, object]:
    plain = {"layers": 2, "edge_drop": 0.2, "feature_drop": 0.5}
    steps = {"temperature": 0.5, "learning_rate": 0.001}
    return {
        "encoder": encoder,
        "feature_scaling": scaling,
        **ENCODER_OPTIONS,
        **plain,
        **steps,
        **other,
    }


# A trial is `default` with other settings, or a plain encoder without what `default` has beyond the
# paper; such a trial says all that it is about. `default` is whatever that recipe is: it is tried
# first, measured or not. `former` is what it was at first.
FIRST = "default"
TRIALS: dict[str, dict[str, object]] = {
    FIRST: {},
    "layers-alone": {"own_features": 0.0, "repeat_own": False},
    "last-layer": {"side_by_side": False},
    "wide": {"dim": 1536, "own_features": 0.33334},
    "shallow": {"layers": 1},
    "deep": {"layers": 3},
    "cold": {"temperature": 0.2},
    "warm": {"temperature": 0.6},
    "heavy": {"edge_drop": 0.5, "feature_drop": 0.7},
    "far": {"edge_drop": 0.1, "feature_drop": 0.8},
    "former": _trial("mean", "row"),
    "gcn": _trial("gcn"),
    "gcn-row": _trial("gcn", "row"),
    "gcn-cold": _trial("gcn", temperature=0.2, feature_drop=0.2),
}

# Graphs of one family are left out together; any other graph is its own family.
FAMILIES = {
    "acm_amgcn": "papers",
    "acm_heco": "papers",
    "acm_hgb": "papers",
    "coauthor_cs": "papers",
    "cora_ml": "papers",
    "dblpv7_multilabel": "papers",
    "fb100_johnshopkins": "college friends",
    "fb100_reed": "college friends",
    "twitch_de": "streamers",
    "twitch_engb": "streamers",
    "chameleon_filtered": "wiki and web",
    "wisconsin": "wiki and web",
    "facebook_pagepage": "wiki and web",
    "amazon_photo": "co-purchases",
    "books_anomaly": "co-purchases",
}


def key_of(row: Row) -> tuple[object, ...]:
    return tuple(row.get(column) for column in COLUMNS)


def grouped(found: Iterable[Row]) -> dict[tuple[str, int], list[Row]]:
    """Returns the trials of each graph and seed, in the order of TRIALS; failed ones are left."""
    latest = rows.latest((row for row in found if "failed" not in row), key_of)
    order = {name: place for place, name in enumerate(TRIALS)}
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(latest.values(), key=lambda row: order.get(str(row["trial"]), len(order))):
        groups.setdefault((str(row["graph"]), int(str(row["seed"]))), []).append(row)
    return dict(sorted(groups.items()))


def family(graph: str) -> str:
    return FAMILIES.get(graph, graph)


def column(group: list[Row], name: str) -> Array:
    return np.array([rows.number(row, name) for row in group])


def scores_of(group: list[Row]) -> dict[str, float]:
    return {str(row["trial"]): rows.number(row, "score") for row in group}


def priors(groups: Iterable[list[Row]]) -> dict[str, float]:
    """Returns by how much each trial scored above the mean trial, on the mean over graphs."""
    each: dict[str, list[float]] = {}
    for group in groups:
        scores = scores_of(group)
        for name, score in scores.items():
            each.setdefault(name, []).append(score - fmean(scores.values()))
    return {name: fmean(values) for name, values in each.items()}


def portfolio_order(groups: list[list[Row]]) -> list[str]:
    """Returns trials so that the best of the first few is good on every graph.

    The first is the best on the mean. Each next one lowers most the mean distance between the best
    of those taken and the best of all; ties go to the higher prior. A trial that adds nothing comes
    last.
    """
    prior, each = priors(groups), [scores_of(group) for group in groups]
    taken: list[str] = []
    while len(taken) < len(prior):

        def regret(name: str) -> float:
            names = [*taken, name]
            return fmean(
                max(scores.values())
                - max((scores[one] for one in names if one in scores), default=0)
                for scores in each
            )

        left = [name for name in prior if name not in taken]
        first = max(left, key=lambda name: prior[name])
        taken.append(first if not taken else min(left, key=lambda n: (regret(n), -prior[n])))
    return taken


def _ranks(*names: str) -> Merits:
    return lambda group, _: sum((rankdata(column(group, name)) for name in names), np.zeros(1))


def _only(name: str) -> Merits:
    return lambda group, _: column(group, name)


def _always(name: str) -> Merits:
    return lambda group, _: np.array([float(row["trial"] == name) for row in group])


def _prior(group: list[Row], prior: Mapping[str, float]) -> Array:
    return np.array([prior.get(str(row["trial"]), 0.0) for row in group])


def _sum(*names: str) -> Merits:
    return lambda group, _: sum((column(group, name) for name in names), np.zeros(1))


SHIPPED = {"effective_rank": "rank", "own": "own", "stability": "view_cka"}  # measures, columns


def _shipped(group: list[Row], _: Mapping[str, float]) -> Array:
    return np.array(
        shipped_merits([{k: rows.number(row, v) for k, v in SHIPPED.items()} for row in group])
    )


CHOSEN = "mean rank: rank, own, stability over views (chosen)"
CRITERIA: dict[str, Merits] = {
    "always `default`": _always(FIRST),
    "always the first `default`": _always("former"),
    "always `residual`": _always("residual"),
    "prior alone: the best on the other families": _prior,
    "cluster stability (chosen at first)": _only("stability"),
    "effective rank (RankMe)": _only("rank"),
    "LiDAR over views": _only("lidar"),
    "alignment of views": _only("alignment"),
    "uniformity": _only("uniformity"),
    "stability over views, linear CKA": _only("view_cka"),
    "stability over views, shared neighbours": _only("view_neighbours"),
    "consensus of trials, shared neighbours": _only("consensus"),
    "consensus of trials, linear CKA": _only("consensus_cka"),
    "neighbours shared with raw features": _only("feature_neighbours"),
    "neighbours shared with features around": _only("around_neighbours"),
    "held-out links told": _only("links"),
    "own features told, a fifth hidden": _only("hidden_own"),
    "degrees told": _only("degree"),
    "positions told": _only("position"),
    "own features told": _only("own"),
    "features around told": _only("around"),
    "mean rank: own features, held-out links": _ranks("own", "links"),
    "mean rank: own features, features around": _ranks("own", "around"),
    "mean rank: own, around, positions, degrees": _ranks("own", "around", "position", "degree"),
    "mean rank: consensus, rank": _ranks("consensus", "rank"),
    "mean rank: own, around, stability over views": _ranks("own", "around", "view_cka"),
    "mean rank: own, around, degrees": _ranks("own", "around", "degree"),
    "mean rank: rank, own": _ranks("rank", "own"),
    "mean rank: rank, stability over views": _ranks("rank", "view_cka"),
    "own + around (chosen before)": _sum("own", "around"),
    CHOSEN: _shipped,
}


OF_TODAY = ("always `default`", "always the first `default`", CHOSEN)


def pick(group: list[Row], merits: Array, *, veto: bool = True) -> int:
    """Returns the trial with the highest merit; with `veto`, of those that have not collapsed."""
    if not veto:
        return int(np.argmax(merits))
    collapsed = np.array(["collapse" in list(row["signs"]) for row in group])  # type: ignore[arg-type]
    merits = np.where(collapsed & ~collapsed.all(), -np.inf, np.broadcast_to(merits, len(group)))
    return int(np.argmax(merits))


def judge(found: list[Row], criteria: Iterable[str] = CRITERIA) -> list[Row]:
    """Returns a line per criterion: regret, picks below the median, collapsed picks."""
    groups = grouped(found)
    lines = [_line(name, groups, CRITERIA[name]) for name in criteria]
    lines.append(
        _line(f"the search: {SEARCH_BUDGET - 1} trials of the portfolio", groups, _shipped, True)
    )
    return lines


def _line(
    name: str, groups: dict[tuple[str, int], list[Row]], merits: Merits, portfolio: bool = False
) -> Row:
    regrets, below, collapsed, correlations = [], 0, 0, []
    for (graph, _), group in groups.items():
        searched, prior = _searched(groups, graph, group)
        scores = column(group, "score")
        tried = searched if portfolio else group
        found = merits(tried, prior)
        chosen = tried[pick(tried, found, veto=not name.startswith("always"))]
        score = rows.number(chosen, "score")
        regrets.append(float(scores.max() - score))
        below += score < np.median(scores)
        collapsed += "collapse" in list(chosen["signs"])  # type: ignore[arg-type]
        if len(set(np.broadcast_to(found, len(tried)).tolist())) > 2:
            correlations.append(float(spearmanr(found, column(tried, "score")).statistic))
    return {
        "criterion": name,
        "regret": fmean(regrets),
        "worst": max(regrets),
        "below": int(below),
        "collapsed": int(collapsed),
        "graphs": len(groups),
        "correlation": fmean(correlations) if correlations else None,
    }


def today_table(found: list[Row]) -> str:
    """Returns the lines of today's criterion and of what it is measured by."""
    return table(found, OF_TODAY)


def table(found: list[Row], criteria: Iterable[str] = CRITERIA) -> str:
    """Returns the table of criteria as Markdown, worst first."""
    lines = judge(found, criteria)
    number = lines[0]["graphs"]
    ordered = sorted(lines[:-1], key=lambda line: -rows.number(line, "regret"))
    head = [
        f"| criterion | mean regret | worst | below the median trial, of {number} | collapsed | "
        "rank correlation |",
        "|---|---|---|---|---|---|",
    ]
    body = [
        f"| {line['criterion']} | {line['regret']:.4f} | {line['worst']:.3f} | {line['below']} | "
        f"{line['collapsed']} | {_signed(line['correlation'])} |"
        for line in [*ordered, lines[-1]]
    ]
    graphs = ", ".join(sorted({graph for graph, _ in grouped(found)}))
    size = len(next(iter(grouped(found).values())))
    said = f"{size} trials on {number} graphs: {graphs}. What the search picks on each of them:"
    return "\n".join([*head, *body, "", said, "", *_picks(found), ""])


def _picks(found: list[Row]) -> list[str]:
    """Returns what the search picks on each graph, as the lines of a table."""
    lines = [
        "| graph | `default` | median trial | pick | best trial |",
        "|---|---|---|---|---|",
    ]
    groups = grouped(found)
    for (graph, _), group in groups.items():
        tried, prior = _searched(groups, graph, group)
        chosen = tried[pick(tried, _shipped(tried, prior))]
        scores = scores_of(group)
        best = max(scores, key=lambda name: scores[name])
        first = f"{scores[FIRST]:.3f}" if FIRST in scores else "–"
        lines.append(
            f"| {graph} | {first} | {np.median(list(scores.values())):.3f} | "
            f"{rows.number(chosen, 'score'):.3f} {chosen['trial']} | {scores[best]:.3f} {best} |"
        )
    return lines


def _searched(
    groups: dict[tuple[str, int], list[Row]], graph: str, group: list[Row]
) -> tuple[list[Row], dict[str, float]]:
    """Returns the trials of a search on a graph, and their priors, by other families alone."""
    others = [one for (g, _), one in groups.items() if family(g) != family(graph)]
    names = list(dict.fromkeys([FIRST, *portfolio_order(others)]))[: SEARCH_BUDGET - 1]
    return [row for row in group if row["trial"] in names], priors(others)


def _signed(value: Any) -> str:
    return "–" if value is None else f"{value:+.2f}".replace("-", "−")


def portfolio_text(found: list[Row]) -> str:
    """Returns `portfolio.toml`."""
    groups = list(grouped(found).values())
    head = (
        "# What recipe auto tries: `default`, then the others in this order, by scores on\n"
        f"# {len(groups)} graphs. Written by `python -m benchmarks.choosing portfolio --write`.\n"
        "# A key that is not named has the value of `default`.\n"
    )
    tables = [
        "\n[[trial]]\n" + format_toml({"name": name, **TRIALS[name]})
        for name in dict.fromkeys([FIRST, *portfolio_order(groups)])
    ]
    return head + "".join(tables)


def link_recovery(z: Any, links: Any, *, known: Any, seed: int = 0) -> float:
    """Returns how well embeddings tell links from other pairs: the ROC-AUC of the cosine.

    Args:
        z: embeddings ``[N, dim]`` of a graph that lacks `links`.
        links: pairs of rows, ``[2, links]``.
        known: all pairs that are linked, those of `links` among them, ``[2, pairs]``: none of these
            is drawn for the other pairs, of which there are as many as links.
        seed: decides the other pairs.

    Returns:
        0.5 if there are no links, which is chance.
    """
    unit, links = unit_rows(z), np.asarray(links)
    n, count = len(unit), links.shape[1]
    if count == 0 or n < 3:
        return 0.5
    random = np.random.default_rng(seed)
    drawn = random.integers(0, n, (2, 4 * count + 16))
    low, high = drawn.min(axis=0), drawn.max(axis=0)
    known = np.asarray(known)
    taken = np.isin(low * n + high, known.min(axis=0) * n + known.max(axis=0)) | (low == high)
    others = np.stack([low, high])[:, ~taken][:, :count]
    if others.shape[1] == 0:
        return 0.5
    pairs = np.concatenate([links, others], axis=1)
    cosine = (unit[pairs[0]] * unit[pairs[1]]).sum(axis=1)
    linked = np.arange(len(cosine)) < count
    return mean_auc(cosine[:, None], linked[:, None].astype(np.int64))


def shared_neighbours(z_1: Any, z_2: Any, k: int = NEIGHBOURS) -> float:
    """Returns which share of a node's `k` nearest embeddings by cosine are the same in both."""
    first, second = (nearest(z, k)[0] for z in alike("shared neighbours", (z_1, z_2)))
    return overlap(first, second)


def overlap(first: Array, second: Array) -> float:
    """Returns which share of the numbers in each row, ``[N, k]``, are in the same row of both."""
    same = (first[:, :, None] == second[:, None, :]).any(axis=2)
    return float(same.mean()) if same.size else 0.0


def consensus(each: Sequence[Any], agree: Callable[[Any, Any], float] | None = None) -> list[float]:
    """Returns how well each of several sets of embeddings agrees with the others, on the mean.

    `agree` compares two of them, and is symmetric; None takes the share of neighbours that they
    have in common. A single one has nobody to agree with: 0.
    """
    if agree is None:
        each = [nearest(z, NEIGHBOURS)[0] for z in alike("consensus", each)]
        agree = overlap
    count = len(each)
    found = np.zeros((count, count))
    for i in range(count):
        for j in range(i):
            found[i, j] = found[j, i] = agree(each[i], each[j])
    return [float(row.sum() / max(1, count - 1)) for row in found]


def lidar(views: Any, *, delta: float = 1e-4) -> float:
    r"""Returns how many directions tell nodes apart beyond what views of one node differ by.

    It is :math:`e^{H(p)}`, where p are the eigenvalues, divided by their sum, of
    :math:`\Sigma_w^{-1/2} \Sigma_b \Sigma_w^{-1/2}` (LiDAR, Thilak et al., 2024).
    :math:`\Sigma_b` is the covariance of the nodes' means over views, :math:`\Sigma_w` that of
    views around their node's mean, plus `delta` times the mean variance on its diagonal.

    Args:
        views: embeddings ``[views, N, dim]``, of two views or more.
        delta: keeps the inverse root finite.
    """
    views = np.asarray(views, np.float64)
    if views.ndim != 3 or len(views) < 2 or views.shape[1] < 2:
        raise GraphError(f"LiDAR: needs two views of two nodes; got the shape {views.shape}")
    views = views / max(float(np.abs(views).max(initial=0)), np.finfo(np.float64).tiny)
    means = views.mean(axis=0)
    around = (views - means).reshape(-1, views.shape[2])
    centred = means - means.mean(axis=0)
    between = centred.T @ centred / (len(means) - 1)
    within = around.T @ around / (len(means) * (len(views) - 1))
    size = float(np.trace(within) + np.trace(between)) / len(within)
    if size == 0:
        return 0.0
    values, vectors = np.linalg.eigh(within)
    root = vectors / np.sqrt(np.maximum(values, 0) + delta * size)
    found = np.maximum(np.linalg.eigvalsh(root.T @ between @ root), 0)
    if found.sum() == 0:
        return 0.0
    p = found[found > 0] / found.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def cluster_stability(graph: Graph, embed: Callable[[Graph], Array]) -> float:
    """Returns how well the clusters of a graph's embeddings agree in two damaged versions of it.

    Which lack a fifth of the links and half of the features. Tuning without labels went by it once.
    """
    random = np.random.default_rng(0)
    links = (missing_links(graph, MISSING_LINKS, random) for _ in range(2))
    return agreement(*(embed(missing_features(one, MISSING_FEATURES, random)) for one in links))


def agreement(z_1: Array, z_2: Array) -> float:
    """Returns how well the clusters of two sets of embeddings of the same nodes agree.

    Each set is clustered by k-means on standardised rows of unit length. The result is the adjusted
    Rand index: 1 if the clusters are the same, 0 if they agree as much as by chance. It is also 0
    if either set has nearly all nodes in one cluster, because a collapsed encoder is not stable.
    On a large graph, `SAMPLE` nodes are clustered. The same embeddings give the same bits. Both
    sets are ``[num_nodes, dim]``.
    """
    nodes = sampled_rows(len(z_1), 0, SAMPLE)
    with threadpool_limits(1):  # threads would change the order of sums, and so the last bits
        parts = [_clusters(np.asarray(z)[nodes], seed) for seed, z in enumerate((z_1, z_2))]
    if any(np.bincount(part).max() > (1 - LEAST_FRACTION) * len(part) for part in parts):
        return 0.0
    return float(adjusted_rand_score(*parts))


def _clusters(z: Array, seed: int) -> Array:
    z = unit_rows(standardiser(z)(z))  # by all rows: nothing is held out here
    means = KMeans(min(CLUSTERS, len(z)), n_init=STARTS, max_iter=100, random_state=seed)
    with warnings.catch_warnings():
        # A collapsed encoder gives fewer distinct rows than clusters.
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels: Array = means.fit_predict(z)
    return labels
