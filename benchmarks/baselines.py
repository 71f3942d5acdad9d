"""Test accuracy of the baselines over many seeds.

usage: python -m benchmarks.baselines --out ROWS.jsonl [--methods raw gcn ...]
           [--datasets cora citeseer pubmed] [--runs 20] [--device cuda] [--jobs 12]
           [--budget SECONDS]

There is one row per method, dataset and seed, appended as it finishes. Rows that are already in
ROWS.jsonl are not computed again, so an interrupted run continues where it stopped. A deterministic
system runs once, and its row has `runs_identical`. Probes run in `--jobs` processes while the
device trains the next system. No training starts after `--budget` seconds. DeepWalk needs gensim
(the extra `baselines`) and trains on the CPU; it runs only if `--methods` names it.
"""

import argparse
import statistics
import time
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks import rows
from graphcl.datasets import load_dataset
from graphcl.devices import resolve_device
from graphcl.research.rows import scoring_pool
from graphcl.research.systems import SYSTEMS
from graphcl.research.trials import Trial, score_method, train_method

DEFAULT = ("raw", "propagation", "random-encoder", "label-propagation", "ep-b", "dgi", "gcn", "gat")
Key = tuple[str, str, int]


def tasks(methods: list[str], datasets: list[str], runs: int, done: set[Key]) -> list[Key]:
    """Returns the runs still to do, seed by seed, so that an interrupted run covers all systems."""
    wanted = [
        (method, dataset, seed)
        for seed in range(runs)
        for dataset in datasets
        for method in methods
        if seed == 0 or not SYSTEMS[method].deterministic
    ]
    return [key for key in wanted if key not in done]


def key_of(row: dict[str, Any]) -> Key:
    return row["method"], row["graph"], row["seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=list(DEFAULT), choices=list(SYSTEMS))
    parser.add_argument("--datasets", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--budget", type=float, default=float("inf"))
    options = parser.parse_args()
    device = resolve_device(options.device)
    known = rows.read(options.out) if options.out.exists() else []
    todo = tasks(options.methods, options.datasets, options.runs, {key_of(row) for row in known})
    graphs = {name: load_dataset(name) for name in options.datasets}
    about = rows.provenance(device)
    began = time.perf_counter()
    pending: list[Future[Trial]] = []

    def write_finished(*, wait: bool) -> None:
        while pending and (wait or pending[0].done()):
            row = pending.pop(0).result().to_json()
            rows.append(options.out, row | about)
            known.append(row)

    with scoring_pool(options.jobs) as pool:
        for number, (method, dataset, seed) in enumerate(todo):
            if time.perf_counter() - began > options.budget:
                print(f"stopped by the budget; {len(todo) - number} runs are left", flush=True)
                break
            graph = graphs[dataset]
            trained = train_method(method, graph, dataset, seed=seed, device=device)
            # With one class per node the probe is scikit-learn's, so no worker needs the GPU.
            pending.append(pool.submit(score_method, trained, graph, device="cpu"))
            write_finished(wait=False)
        write_finished(wait=True)
    summarise(known, options.methods, options.datasets)
    print(f"{time.perf_counter() - began:.0f} s", flush=True)


def summarise(found: list[dict[str, Any]], methods: list[str], datasets: list[str]) -> None:
    """Prints one line per method and dataset: test and validation accuracy, seconds, runs."""
    groups = defaultdict(list)
    for row in found:
        groups[row["method"], row["graph"]].append(row)
    for method in methods:
        for dataset in datasets:
            group = groups[method, dataset]
            scored = [row for row in group if "accuracy" in row]
            if not scored:
                continue
            test = [100 * row["accuracy"] for row in scored]
            val = statistics.fmean(100 * row["val_accuracy"] for row in scored)
            spread = statistics.stdev(test) if len(test) > 1 else 0.0
            seconds = statistics.median(row["train_seconds"] for row in scored)
            print(
                f"{method:18} {dataset:9} {statistics.fmean(test):5.1f} ± {spread:.1f}  "
                f"val {val:.1f}  {len(scored)} runs, {len(group) - len(scored)} failed, "
                f"{seconds:.2f} s each",
                flush=True,
            )


if __name__ == "__main__":
    main()
