"""Which criterion chooses well without labels? Trials on many graphs, and each criterion's regret.

usage: python -m benchmarks.choosing train --out ROWS.jsonl [--kept KEPT] [--graphs nba actor ...]
           [--folder FOLDER] [--trials default gcn ...] [--runs 1] [--steps 100]
           [--set key=value ...] [--device cuda] [--budget SECONDS]
       python -m benchmarks.choosing criteria --rows ROWS.jsonl --kept KEPT --out JUDGED.jsonl
           [--folder FOLDER]
       python -m benchmarks.choosing table [--write | --check]
       python -m benchmarks.choosing portfolio [--rows ROWS.jsonl] [--write]

`train` trains every trial of TRIALS on every graph of a folder, by default ``graphs/`` in the
folder GRAPHCL_DATA names. A row has the test score by the gallery's protocol
(`graphcl.evaluation.splits`) and the measures of today's criterion. With `--kept`, what else the
trial shows without labels is kept in KEPT/GRAPH/TRIAL-SEED.npy: embeddings of up to 2,000 nodes, in
the graph and in damaged versions of it. With `--steps`, a graph is trained for as few epochs as
give so many steps; without it, for the recipe's epochs. No training starts after `--budget`
seconds. `criteria` computes every criterion from what was kept, and writes rows with it. Both skip
what is in the file already.

`table` prints how well each criterion chooses, from rows of `criteria`, and how well today's does
around today's `default`, from rows of `train`; with `--write` it puts both into docs/choosing.md.
`portfolio` prints what `graphcl.research.auto_recipe` should try, in which order; with `--write` it
replaces its table. Neither trains.
"""

import argparse
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from statistics import fmean

import numpy as np
import scipy.sparse
from scipy.sparse.linalg import eigsh

from benchmarks.criteria import (
    BEGIN,
    COLUMNS,
    END,
    PAGE,
    RESULTS,
    SHIPPED,
    STUDY,
    TABLE,
    TODAY,
    TRIALS,
    Array,
    cluster_stability,
    consensus,
    grouped,
    key_of,
    lidar,
    link_recovery,
    portfolio_text,
    shared_neighbours,
    table,
    today_table,
)
from benchmarks.rows import placed
from graphcl.datasets import graph_files, read_gallery_graph
from graphcl.devices import resolve_device
from graphcl.errors import TrainingWarning
from graphcl.estimator import GraphCL
from graphcl.evaluation.splits import compare_probe
from graphcl.evaluation.unsupervised import alignment, effective_rank, uniformity
from graphcl.files.atomic import write_whole
from graphcl.graphs.graph import Graph
from graphcl.recipes import load_recipe
from graphcl.research import rows
from graphcl.research.evidence import (
    VERSIONS,
    Evidence,
    few_shot_recovery,
    linear_cka,
    measure,
    principal_targets,
)
from graphcl.research.rows import Job, Progress, Row, Scoring

POSITIONS = 32
MOST_NEIGHBOURS = 256


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
    needed = {"train": ("out",), "criteria": ("out", "kept")}.get(options.verb, ())
    for name in needed:
        if getattr(options, name) is None:
            parser.error(f"--{name} is needed")
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
    base = load_recipe("default").with_texts(**changed)

    @lru_cache(maxsize=1)  # one graph in memory at a time
    def loaded(name: str) -> tuple[Graph, Evidence]:
        graph = read_gallery_graph(files[name])
        return graph, Evidence.of(graph, seed=0, versions=VERSIONS)

    def job(name: str, trial: str, seed: int) -> Job:
        about: Row = {"graph": name, "trial": trial, "seed": seed}

        def run() -> Iterator[Scoring]:
            graph, evidence = loaded(name)
            recipe = base.replace(**TRIALS[trial])
            if options.steps:
                each = -(-graph.num_nodes // (recipe.batch_nodes or graph.num_nodes))
                recipe = recipe.replace(epochs=-(-options.steps // each))
            model = GraphCL(recipe, seed=seed, device=str(device))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrainingWarning)
                model.fit(evidence.graph)
            shown = evidence.observe(model.transform)
            found: Row = {
                "settings": asdict(recipe),
                "train_seconds": model.seconds_,
                "loss": model.history_[-1].loss,
                "signs": [sign.name for sign in model.health_.warnings],
                **{SHIPPED[name]: value for name, value in measure(evidence, shown).items()},
            }
            if options.kept:
                path = options.kept / name / f"{trial}-{seed}.npy"
                path.parent.mkdir(parents=True, exist_ok=True)
                np.save(path, shown)
                found["stability"] = cluster_stability(graph, model.transform)
            scores: Row = asdict(compare_probe(model.transform(graph), graph, device=device))
            yield Scoring((about | found | scores,))

        return Job(f"{trial} on {name}", (about,), run)

    jobs = [
        job(name, trial, seed)
        for seed in range(options.runs)
        for name in options.graphs or list(files)
        for trial in options.trials
    ]
    rows.execute(
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
            rows.append(options.out, {k: v for k, v in row.items() if k not in every} | every)
        print(name, len(group), flush=True)


def criteria(evidence: Evidence, shown: list[Array]) -> list[dict[str, float]]:
    """Returns every criterion of each trial of a graph; higher is meant to be better."""
    structure = structure_of(evidence)
    x, around = evidence.features(), features_around(evidence)
    links = links_among(evidence.graph, evidence.nodes)
    hidden = [hidden_links(evidence, number) for number in range(evidence.count)]
    targets_around = principal_targets(around)
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
                    link_recovery(version, links[:, lost], known=links)
                    for version, lost in zip(versions, hidden, strict=True)
                ),
                "own": few_shot_recovery(z, evidence.own),
                "around": few_shot_recovery(z, targets_around),
                "hidden_own": few_shot_recovery(versions[0], evidence.own),
                **{name: few_shot_recovery(z, target) for name, target in structure.items()},
            }
        )
    whole = [one[0] for one in shown]
    for name, agree in (("consensus", None), ("consensus_cka", linear_cka)):
        for one, value in zip(found, consensus(whole, agree), strict=True):
            one[name] = value
    return found


def hidden_links(evidence: Evidence, number: int) -> Array:
    """Returns which of the links among the nodes a version lacks, ``[links]`` booleans."""
    there = links_among(evidence.version(number), evidence.nodes)
    return ~np.isin(_codes(links_among(evidence.graph, evidence.nodes)), _codes(there))


def features_around(evidence: Evidence) -> Array:
    """Returns the mean features of each node's neighbours, ``[S, P]``; without any, zeros.

    Of many neighbours, at most `MOST_NEIGHBOURS` are read.
    """
    indptr, indices = evidence.graph.indptr, evidence.graph.indices
    rows = np.zeros(evidence.features().shape)
    for place, u in enumerate(evidence.nodes):
        others = np.asarray(indices[indptr[u] : indptr[u + 1]])
        others = others[:: max(1, -(-len(others) // MOST_NEIGHBOURS))]
        if len(others):
            rows[place] = evidence.features(others).mean(axis=0)
    return rows


def links_among(graph: Graph, nodes: Array) -> Array:
    """Returns the links with both ends among `nodes`, each once, as places in `nodes`."""
    place = np.full(graph.num_nodes, -1, np.int64)
    place[nodes] = np.arange(len(nodes))
    found = []
    for own, u in enumerate(nodes):
        others = place[np.asarray(graph.indices[graph.indptr[u] : graph.indptr[u + 1]])]
        others = others[others > own]
        found.append(np.stack([np.full(len(others), own), others]))
    return np.concatenate(found, axis=1)


def _codes(links: Array) -> Array:
    codes: Array = links[0] * (1 << 32) + links[1]
    return codes


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


# --- pages


def show_table(options: argparse.Namespace) -> None:
    study, today = table(rows.read(STUDY)), today_table(rows.read(RESULTS))
    print(study, today, sep="\n")
    page = PAGE.read_text()
    whole = placed(placed(page, BEGIN, study, END), TODAY, today, END)
    if options.write:
        write_whole(PAGE, whole)
    elif options.check and whole != page:
        raise SystemExit(
            f"{PAGE}: is not what the rows say; python -m benchmarks.choosing table --write"
        )


def show_portfolio(options: argparse.Namespace) -> None:
    text = portfolio_text(rows.read(options.rows))
    print(text)
    if options.write:
        write_whole(TABLE, text)


if __name__ == "__main__":
    main()
