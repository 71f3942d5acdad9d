"""Which criterion chooses a recipe without labels? The page of a study, from its rows.

usage: python -m benchmarks.choosing [--write | --check]

Prints how well each criterion chooses among the trials of `choosing_study.jsonl`, and how well the
one that was chosen does among those of `choosing.jsonl`, around today's `default`. `--write` puts
both into docs/research/choosing.md; `--check` fails if the page says something else.

A row has a trial's test score by the protocol of `graphcl compare`, and what the trial showed
without labels. The recipe `auto`, which searched by it, is gone, and so is the code that computed
it; a row names the commit that had it.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata, spearmanr

from benchmarks.rows import placed
from graphcl.files.atomic import write_whole
from graphcl.research import rows
from graphcl.research.rows import Row

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/choosing.jsonl"
STUDY = ROOT / "benchmarks/results/choosing_study.jsonl"  # all criteria, around an earlier default
PAGE, BEGIN, END = ROOT / "docs/research/choosing.md", "<!-- criteria -->\n", "<!-- end -->"
TODAY = "<!-- today -->\n"
COLUMNS = ("graph", "trial", "seed")
SEARCHED = 9  # trials of a search; a tenth training was that of the pick

Array = npt.NDArray[Any]
Merits = Callable[[list[Row], Mapping[str, float]], Array]

# `default` was tried first, whether it was measured or not. Others that the rows have come last.
FIRST = "default"
TRIALS = (
    FIRST,
    "layers-alone",
    "last-layer",
    "wide",
    "shallow",
    "deep",
    "cold",
    "warm",
    "heavy",
    "far",
    "former",
    "gcn",
    "gcn-row",
    "gcn-cold",
)

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


_chosen = _ranks("rank", "own", "view_cka")
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
    "predicts held-out links": _only("links"),
    "predicts own features, a fifth hidden": _only("hidden_own"),
    "predicts degrees": _only("degree"),
    "predicts positions": _only("position"),
    "predicts own features": _only("own"),
    "predicts features around": _only("around"),
    "mean rank: own features, held-out links": _ranks("own", "links"),
    "mean rank: own features, features around": _ranks("own", "around"),
    "mean rank: own, around, positions, degrees": _ranks("own", "around", "position", "degree"),
    "mean rank: consensus, rank": _ranks("consensus", "rank"),
    "mean rank: own, around, stability over views": _ranks("own", "around", "view_cka"),
    "mean rank: own, around, degrees": _ranks("own", "around", "degree"),
    "mean rank: rank, own": _ranks("rank", "own"),
    "mean rank: rank, stability over views": _ranks("rank", "view_cka"),
    "own + around (chosen before)": _sum("own", "around"),
    CHOSEN: _chosen,
}


SHOWN = (  # on the page; all of them are printed
    "always `default`",
    "always the first `default`",
    "always `residual`",
    "predicts positions",
    "predicts own features",
    "alignment of views",
    "cluster stability (chosen at first)",
    "prior alone: the best on the other families",
    "consensus of trials, linear CKA",
    "effective rank (RankMe)",
    "mean rank: own, around, degrees",
    CHOSEN,
)
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
    lines.append(_line(f"the search: {SEARCHED} trials of the portfolio", groups, _chosen, True))
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
    size = len(next(iter(grouped(found).values())))
    return "\n".join([*head, *body, "", f"{size} trials on {number} graphs.", ""])


def _searched(
    groups: dict[tuple[str, int], list[Row]], graph: str, group: list[Row]
) -> tuple[list[Row], dict[str, float]]:
    """Returns the trials of a search on a graph, and their priors, by other families alone."""
    others = [one for (g, _), one in groups.items() if family(g) != family(graph)]
    names = list(dict.fromkeys([FIRST, *portfolio_order(others)]))[:SEARCHED]
    return [row for row in group if row["trial"] in names], priors(others)


def _signed(value: Any) -> str:
    return "–" if value is None else f"{value:+.2f}".replace("-", "−")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    study, today = table(rows.read(STUDY), SHOWN), table(rows.read(RESULTS), OF_TODAY)
    if not options.write and not options.check:
        print(table(rows.read(STUDY)), today, sep="\n")
    page = PAGE.read_text()
    whole = placed(placed(page, BEGIN, study, END), TODAY, today, END)
    if options.write:
        write_whole(PAGE, whole)
    elif options.check and whole != page:
        raise SystemExit(f"{PAGE}: is not what the rows say; python -m benchmarks.choosing --write")


if __name__ == "__main__":
    main()
