"""Which criterion chooses well without labels? Trials on many graphs, and each criterion's regret.

usage: python -m benchmarks.choosing train --out ROWS.jsonl --kept FOLDER [--graphs nba actor ...]
           [--folder FOLDER] [--runs 1] [--dim 128] [--steps 100] [--set key=value ...]
           [--device cuda] [--budget SECONDS]

`train` trains every trial of TRIALS on every graph of a folder, by default ``graphs/`` in the
folder GRAPHCL_DATA names. A row has the test score by the gallery's protocol
(`graphcl.evaluation.splits`); what the trial shows without labels is kept in
KEPT/GRAPH/TRIAL-SEED.npy, the embeddings of up to 2,000 nodes in the graph and in damaged versions
of it. Rows that are there already are not computed again. With `--steps`, a graph is trained for as
few epochs as give so many steps; without it, for the recipe's epochs.
"""

import argparse
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import numpy as np

from graphcl.choosing.evidence import Evidence
from graphcl.datasets.gallery import graph_files, read_gallery_graph
from graphcl.devices import resolve_device
from graphcl.errors import TrainingWarning
from graphcl.estimator import GraphCL
from graphcl.evaluation.splits import compare_probe
from graphcl.graphs.graph import Graph
from graphcl.recipes import load_recipe
from graphcl.trials import runner
from graphcl.trials.rows import Row
from graphcl.trials.runner import Job, Progress, Scoring
from graphcl.tuning.objective import ClusterStability

COLUMNS = ("graph", "trial", "seed")


def _trial(encoder: str, scaling: str = "auto", **other: object) -> dict[str, object]:
    plain = {"layers": 2, "edge_drop": 0.2, "feature_drop": 0.5, "temperature": 0.5}
    return {"encoder": encoder, "feature_scaling": scaling, **plain, **other}


# Each trial says all that it is about; `default` is whatever the recipe is.
TRIALS: dict[str, dict[str, object]] = {
    "default": {},
    "mean": _trial("mean"),
    "mean-row": _trial("mean", "row"),
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    train = verbs.add_parser("train")
    train.add_argument("--out", type=Path, required=True)
    train.add_argument("--kept", type=Path, required=True)
    train.add_argument("--graphs", nargs="+")
    train.add_argument("--folder", type=Path)
    train.add_argument("--trials", nargs="+", default=list(TRIALS), choices=list(TRIALS))
    train.add_argument("--runs", type=int, default=1)
    train.add_argument("--steps", type=int)
    train.add_argument("--set", nargs="+", default=[], dest="settings")
    train.add_argument("--device", default="auto")
    train.add_argument("--budget", type=float, default=float("inf"))
    options = parser.parse_args()
    train_all(options)


def train_all(options: argparse.Namespace) -> None:
    """Trains what the file of rows does not hold yet."""
    folder = options.folder or Path(os.environ.get("GRAPHCL_DATA", ".")) / "graphs"
    files = graph_files(folder)
    device = resolve_device(options.device)
    changed = dict(pair.split("=", 1) for pair in options.settings)

    @lru_cache(maxsize=1)  # one graph in memory at a time
    def loaded(name: str) -> tuple[Graph, Evidence, ClusterStability]:
        graph = read_gallery_graph(files[name])
        return graph, Evidence.of(graph, seed=0), ClusterStability.of(graph, seed=0)

    def job(name: str, trial: str, seed: int) -> Job:
        about: Row = {"graph": name, "trial": trial, "seed": seed}

        def run() -> Iterator[Scoring]:
            graph, evidence, stability = loaded(name)
            settings = {**changed, **TRIALS[trial]}
            if options.steps:
                size = int(changed.get("batch_nodes", load_recipe("default").batch_nodes))
                epochs = -(-options.steps // -(-graph.num_nodes // size))
                settings["epochs"] = epochs
            model = GraphCL(load_recipe("default").with_values(**settings), seed=seed)
            model.set_params(device=str(device))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TrainingWarning)
                model.fit(evidence.graph)
            shown = evidence.observe(model.transform)
            path = options.kept / name / f"{trial}-{seed}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, shown)
            yield Scoring(
                (
                    about
                    | {"settings": asdict(model.recipe_), "train_seconds": model.seconds_}
                    | {
                        "loss": model.history_[-1].loss,
                        "signs": [s.name for s in model.health_.warnings],
                    }
                    | {"stability": stability(model.transform)}
                    | asdict(compare_probe(model.transform(graph), graph, device=device)),
                )
            )

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


if __name__ == "__main__":
    main()
