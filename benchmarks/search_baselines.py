"""Grid search of a baseline's settings by validation scores only, with several seeds per point.

usage: python -m benchmarks.search_baselines METHOD --out ROWS.jsonl --grid KEY=A,B,... [KEY=C ...]
           [--datasets cora citeseer pubmed] [--seeds 3] [--first-seed 1000] [--device cuda]
           [--jobs 12]

There is one row per point, dataset and seed, appended as it finishes. Rows that are already in
ROWS.jsonl are not computed again. No row has a test score, and the seeds are not those of the
tables. The points of each dataset are printed with the best one first.
"""

import argparse
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from benchmarks import rows
from graphcl.cli.options import parse_settings
from graphcl.datasets import load_dataset
from graphcl.devices import resolve_device
from graphcl.graphs.collection import Labelled
from graphcl.research.rows import Row, scoring_pool
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.system import settings_of
from graphcl.research.trials import Trial, score_method, train_method

KEPT = ("method", "graph", "seed", "settings", "train_seconds", "failed")
VALIDATION = ("val_accuracy", "val_micro_f1")


def points(grid: Sequence[str]) -> list[dict[str, str]]:
    """Returns every combination of ``KEY=A,B`` texts."""
    choices = {key: value.split(",") for key, value in parse_settings(list(grid)).items()}
    return [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]


def without_test(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the part of a row that a search may use: everything but test scores."""
    return {key: row[key] for key in (*KEPT, *VALIDATION) if key in row}


def identity(row: dict[str, Any]) -> str:
    return json.dumps([row[key] for key in ("method", "graph", "seed", "settings")], sort_keys=True)


def ranking(found: Sequence[dict[str, Any]]) -> list[tuple[str, float, int, dict[str, Any]]]:
    """Returns (dataset, mean validation score, runs, settings), best first in each dataset."""
    groups = defaultdict(list)
    for row in found:
        groups[row["graph"], json.dumps(row["settings"], sort_keys=True)].append(row)
    lines = []
    for (graph, settings), members in groups.items():
        scores = [row[key] for row in members for key in VALIDATION if key in row]
        if scores:
            lines.append((graph, statistics.fmean(scores), len(scores), json.loads(settings)))
    return sorted(lines, key=lambda line: (line[0], -line[1]))


def scored(trial: Trial, data: Labelled) -> Row:
    """Returns the row of a trial with its scores."""
    return trial.row | score_method(trial, data, device="cpu")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=sorted(SYSTEMS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--grid", nargs="+", required=True)
    parser.add_argument("--datasets", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(arguments)
    device = resolve_device(options.device)
    known = rows.read(options.out) if options.out.exists() else []
    done = {identity(row) for row in known}
    about = rows.provenance(device)
    pending: list[Future[Row]] = []

    def write_finished(*, wait: bool) -> None:
        while pending and (wait or pending[0].done()):
            row = without_test(pending.pop(0).result())
            rows.append(options.out, row | about)
            known.append(row)

    graphs = {name: load_dataset(name) for name in options.datasets}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with scoring_pool(options.jobs) as pool:
        for dataset, seed, point in itertools.product(
            options.datasets, seeds, points(options.grid)
        ):
            data = graphs[dataset]
            method = SYSTEMS[options.method].method(dataset, **point)
            key = {"method": options.method, "graph": data.name, "seed": seed}
            if identity(key | {"settings": settings_of(method)}) in done:
                continue
            keywords = {"seed": seed, "device": device, "settings": point}
            trained = train_method(options.method, data, dataset, **keywords)
            pending.append(pool.submit(scored, trained, data))
            write_finished(wait=False)
        write_finished(wait=True)
    for graph, mean, runs, settings in ranking(known):
        print(f"{graph:9} {100 * mean:5.2f} over {runs}  {settings}", flush=True)


if __name__ == "__main__":
    main()
