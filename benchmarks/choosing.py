"""Which criterion chooses well without labels? Trials on many graphs, and each criterion's regret.

usage: python -m benchmarks.choosing train --out ROWS.jsonl --kept KEPT [--graphs nba actor ...]
           [--folder FOLDER] [--trials default gcn ...] [--runs 1] [--steps 100]
           [--set key=value ...] [--device cuda] [--budget SECONDS]
       python -m benchmarks.choosing criteria --rows ROWS.jsonl --kept KEPT --out JUDGED.jsonl
           [--folder FOLDER]
       python -m benchmarks.choosing table [--rows JUDGED.jsonl] [--write | --check]
       python -m benchmarks.choosing portfolio [--rows JUDGED.jsonl] [--write]

`train` trains every trial of TRIALS on every graph of a folder, by default ``graphs/`` in the
folder GRAPHCL_DATA names. A row has the test score by the gallery's protocol
(`graphcl.evaluation.splits`) and today's criterion. What else the trial shows without labels is
kept in KEPT/GRAPH/TRIAL-SEED.npy: embeddings of up to 2,000 nodes, in the graph and in damaged
versions of it. With `--steps`, a graph is trained for as few epochs as give so many steps; without
it, for the recipe's epochs. No training starts after `--budget` seconds. `criteria` computes every
criterion from what was kept, and writes rows with it. Both skip what is in the file already.

`table` prints how well each criterion chooses, from rows of `criteria`; with `--write` it puts the
table into docs/choosing.md. `portfolio` prints what `graphcl.choosing` should try, in which order;
with `--write` it replaces its table. Neither trains.
"""

import argparse
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.sparse.linalg import eigsh
from scipy.stats import rankdata, spearmanr

from graphcl.choosing.criterion import merit
from graphcl.choosing.evidence import Evidence
from graphcl.choosing.portfolio import FILE
from graphcl.choosing.search import BUDGET
from graphcl.datasets.gallery import graph_files, read_gallery_graph
from graphcl.devices import resolve_device
from graphcl.errors import TrainingWarning
from graphcl.estimator import GraphCL
from graphcl.evaluation.agreement import consensus, lidar, linear_cka, shared_neighbours
from graphcl.evaluation.recovery import few_shot_recovery, link_recovery
from graphcl.evaluation.splits import compare_probe
from graphcl.evaluation.unsupervised import alignment, effective_rank, uniformity
from graphcl.files.atomic import write_whole
from graphcl.files.text import format_toml
from graphcl.graphs.graph import Graph
from graphcl.recipes import load_recipe
from graphcl.settings import BEYOND
from graphcl.trials import rows, runner
from graphcl.trials.rows import Row
from graphcl.trials.runner import Job, Progress, Scoring
from graphcl.tuning.objective import ClusterStability

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/choosing.jsonl"
PAGE, BEGIN, END = ROOT / "docs/choosing.md", "<!-- criteria -->\n", "<!-- end -->"
TABLE = ROOT / "src/graphcl/choosing" / FILE
COLUMNS = ("graph", "trial", "seed")
VERSIONS = 3
POSITIONS = 32

Array = npt.NDArray[Any]
Merits = Callable[[list[Row], Mapping[str, float]], Array]


def _trial(encoder: str, scaling: str = "auto", **other: object) -> dict[str, object]:
    plain = {"layers": 2, "edge_drop": 0.2, "feature_drop": 0.5, "temperature": 0.5}
    return {"encoder": encoder, "feature_scaling": scaling, **BEYOND, **plain, **other}


# Each trial says all that it is about. `default` is whatever that recipe is: it is tried first,
# measured or not. `former` is what it was in version 0.1.0.
FIRST = "default"
TRIALS: dict[str, dict[str, object]] = {
    FIRST: {},
    "former": _trial("mean", "row"),
    "mean": _trial("mean"),
    "residual": _trial("residual"),
    "residual-row": _trial("residual", "row"),
    "residual-none": _trial("residual", "none"),
    "residual-1": _trial("residual", layers=1),
    "residual-cold": _trial("residual", temperature=0.2),
    "residual-warm": _trial("residual", temperature=1.0),
    "residual-light": _trial("residual", edge_drop=0.1, feature_drop=0.2),
    "residual-heavy": _trial("residual", edge_drop=0.5, feature_drop=0.7),
    "residual-own": _trial("residual", edge_drop=0.8, feature_drop=0.2),
    "residual-far": _trial("residual", edge_drop=0.1, feature_drop=0.8),
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("train", "criteria", "table", "portfolio"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rows", type=Path, default=RESULTS)
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--graphs", nargs="+")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--trials", nargs="+", default=list(TRIALS), choices=list(TRIALS))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--set", nargs="+", default=[], dest="settings")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", type=float, default=float("inf"))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    options.folder = options.folder or Path(os.environ.get("GRAPHCL_DATA", ".")) / "graphs"
    if options.verb in ("train", "criteria") and not (options.out and options.kept):
        parser.error("--out and --kept are needed")
    if options.verb == "train":
        train_all(options)
    elif options.verb == "criteria":
        add_criteria(options)
    elif options.verb == "table":
        show_table(options)
    else:
        show_portfolio(options)


# --- training


def train_all(options: argparse.Namespace) -> None:
    """Trains what the file of rows does not hold yet."""
    files = graph_files(options.folder)
    device = resolve_device(options.device)
    changed = dict(pair.split("=", 1) for pair in options.settings)
    base = load_recipe("default").with_values(**changed)

    @lru_cache(maxsize=1)  # one graph in memory at a time
    def loaded(name: str) -> tuple[Graph, Evidence, ClusterStability]:
        graph = read_gallery_graph(files[name])
        evidence = Evidence.of(graph, seed=0, versions=VERSIONS)
        return graph, evidence, ClusterStability.of(graph, seed=0)

    def job(name: str, trial: str, seed: int) -> Job:
        about: Row = {"graph": name, "trial": trial, "seed": seed}

        def run() -> Iterator[Scoring]:
            graph, evidence, stability = loaded(name)
            recipe = base.with_values(**TRIALS[trial])
            if options.steps:
                each = -(-graph.num_nodes // (recipe.batch_nodes or graph.num_nodes))
                recipe = recipe.with_values(epochs=-(-options.steps // each))
            model = GraphCL(recipe, seed=seed, device=str(device))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrainingWarning)
                model.fit(evidence.graph)
            path = options.kept / name / f"{trial}-{seed}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, evidence.observe(model.transform))
            found: Row = {
                "settings": asdict(recipe),
                "train_seconds": model.seconds_,
                "loss": model.history_[-1].loss,
                "signs": [sign.name for sign in model.health_.warnings],
                "stability": stability(model.transform),
            }
            scores: Row = asdict(compare_probe(model.transform(graph), graph, device=device))
            yield Scoring((about | found | scores,))

        return Job(f"{trial} on {name}", (about,), run)

    jobs = [
        job(name, trial, seed)
        for seed in range(options.runs)
        for name in options.graphs or list(files)
        for trial in options.trials
    ]
    runner.execute(
        jobs, options.out, columns=COLUMNS, device=device, budget=options.budget, on_progress=show
    )


def show(progress: Progress) -> None:
    """Prints one line per training."""
    print(
        f"{progress.done}/{progress.total}  {progress.elapsed:.0f} s  {progress.label}  "
        f"{progress.failed} failed, {progress.remaining:.0f} s left",
        flush=True,
    )


# --- criteria


def add_criteria(options: argparse.Namespace) -> None:
    """Writes rows with every criterion, graph by graph."""
    files = graph_files(options.folder)
    there = {key_of(row) for row in rows.read(options.out)}
    for (name, _), group in grouped(rows.read(options.rows)).items():
        if all(key_of(row) in there for row in group):
            continue
        evidence = Evidence.of(read_gallery_graph(files[name]), seed=0, versions=VERSIONS)
        shown = [
            np.load(options.kept / name / f"{row['trial']}-{row['seed']}.npy") for row in group
        ]
        found = criteria(evidence, shown)
        for row, one in zip(group, found, strict=True):
            every: Row = {"stability": row["stability"], **one}
            rows.append(options.out, {k: v for k, v in row.items() if k != "stability"} | every)
        print(name, len(group), flush=True)


def criteria(evidence: Evidence, shown: list[Array]) -> list[dict[str, float]]:
    """Returns every criterion of each trial of a graph; higher is meant to be better."""
    structure = structure_of(evidence)
    x, around = evidence.features(), evidence.features_around()
    found = []
    for z, *versions in shown:
        found.append(
            {
                "rank": effective_rank(z),
                "lidar": lidar(np.stack([z, *versions])),
                "alignment": -fmean(alignment(z, version) for version in versions),
                "uniformity": -uniformity(z),
                "view_cka": fmean(linear_cka(z, version) for version in versions),
                "view_neighbours": fmean(shared_neighbours(z, version) for version in versions),
                "feature_neighbours": shared_neighbours(z, x),
                "around_neighbours": shared_neighbours(z, around),
                "links": fmean(
                    link_recovery(version, evidence.links[:, hidden], known=evidence.links)
                    for version, hidden in zip(versions, evidence.hidden, strict=True)
                ),
                "own": few_shot_recovery(z, evidence.own),
                "around": few_shot_recovery(z, evidence.around),
                "hidden_own": few_shot_recovery(versions[0], evidence.own),
                **{name: few_shot_recovery(z, target) for name, target in structure.items()},
            }
        )
    whole = [one[0] for one in shown]
    for name, agree in (("consensus", None), ("consensus_cka", linear_cka)):
        for one, value in zip(found, consensus(whole, agree), strict=True):
            one[name] = value
    return found


def structure_of(evidence: Evidence) -> dict[str, Array]:
    """Returns targets that the links alone decide: degrees, and positions (eigenvectors)."""
    graph, nodes = evidence.graph, evidence.nodes
    degree = np.diff(graph.indptr).astype(np.float64)
    shape = (graph.num_nodes, graph.num_nodes)
    links = scipy.sparse.csr_array(
        (np.ones(len(graph.indices)), graph.indices, graph.indptr), shape
    )
    mean = scipy.sparse.diags_array(1 / np.maximum(degree, 1)) @ links
    log = np.log1p(degree)
    degrees = np.stack([log, mean @ log, mean @ (mean @ log)], axis=1)
    root = scipy.sparse.diags_array(1 / np.sqrt(degree + 1))
    smooth = root @ (links + scipy.sparse.eye_array(graph.num_nodes)) @ root
    count = min(POSITIONS + 1, graph.num_nodes - 2)
    values, vectors = eigsh(smooth, k=count, which="LA", v0=np.ones(graph.num_nodes))
    positions = vectors[:, np.argsort(-values)][:, 1:]
    return {"degree": degrees[nodes], "position": positions[nodes]}


# --- judging


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


def _shipped(group: list[Row], _: Mapping[str, float]) -> Array:
    names = ("own", "around")
    return np.array([merit({name: rows.number(row, name) for name in names}) for row in group])


CRITERIA: dict[str, Merits] = {
    "always the former `default`": _always("former"),
    "always `residual`": _always("residual"),
    "prior alone: the best on the other families": _prior,
    "cluster stability (until now)": _only("stability"),
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
    "own + around + prior": lambda *given: _shipped(*given) + _prior(*given),
    "own + around (chosen)": _shipped,
}


def pick(group: list[Row], merits: Array, *, veto: bool = True) -> int:
    """Returns the trial with the highest merit; with `veto`, of those that have not collapsed."""
    if not veto:
        return int(np.argmax(merits))
    collapsed = np.array(["collapse" in list(row["signs"]) for row in group])  # type: ignore[arg-type]
    merits = np.where(collapsed & ~collapsed.all(), -np.inf, np.broadcast_to(merits, len(group)))
    return int(np.argmax(merits))


def judge(found: list[Row]) -> list[Row]:
    """Returns a line per criterion: regret, picks below the median, collapsed picks."""
    groups = grouped(found)
    lines = [_line(name, groups, merits) for name, merits in CRITERIA.items()]
    lines.append(_line(f"the search: {BUDGET - 1} trials of the portfolio", groups, _shipped, True))
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


def table(found: list[Row]) -> str:
    """Returns the table of criteria as Markdown, worst first."""
    lines = judge(found)
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
        "| graph | former `default` | median trial | pick | best trial |",
        "|---|---|---|---|---|",
    ]
    groups = grouped(found)
    for (graph, _), group in groups.items():
        tried, prior = _searched(groups, graph, group)
        chosen = tried[pick(tried, _shipped(tried, prior))]
        scores = scores_of(group)
        best = max(scores, key=lambda name: scores[name])
        former = f"{scores['former']:.3f}" if "former" in scores else "–"
        lines.append(
            f"| {graph} | {former} | {np.median(list(scores.values())):.3f} | "
            f"{rows.number(chosen, 'score'):.3f} {chosen['trial']} | {scores[best]:.3f} {best} |"
        )
    return lines


def _searched(
    groups: dict[tuple[str, int], list[Row]], graph: str, group: list[Row]
) -> tuple[list[Row], dict[str, float]]:
    """Returns the trials of a search on a graph, and their priors, by other families alone."""
    others = [one for (g, _), one in groups.items() if family(g) != family(graph)]
    names = portfolio_order(others)[: BUDGET - 1]
    return [row for row in group if row["trial"] in names], priors(others)


def _signed(value: Any) -> str:
    return "–" if value is None else f"{value:+.2f}".replace("-", "−")


def show_table(options: argparse.Namespace) -> None:
    text = table(rows.read(options.rows))
    print(text)
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    whole = f"{before}{BEGIN}{text}{END}{rest.split(END, 1)[1]}"
    if options.write:
        write_whole(PAGE, whole)
    elif options.check and whole != page:
        raise SystemExit(
            f"{PAGE}: is not what the rows say; python -m benchmarks.choosing table --write"
        )


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


def show_portfolio(options: argparse.Namespace) -> None:
    text = portfolio_text(rows.read(options.rows))
    print(text)
    if options.write:
        write_whole(TABLE, text)


if __name__ == "__main__":
    main()
