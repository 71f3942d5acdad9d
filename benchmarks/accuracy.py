"""Test accuracy of the shipped recipes over many seeds.

usage: python -m benchmarks.accuracy --out ROWS.jsonl [--recipes cora citeseer pubmed] [--runs 50]
           [--first-seed 0] [--set KEY=VALUE ...] [--device cuda] [--jobs 8]

Each seed gives one row, written as soon as it and those before it are done; a training that fails
gives a row with the reason. A recipe `cora-best` is trained on `cora`. The summary printed at the
end is `graphcl.research.trials.summarise` over the rows.
"""

import argparse
import math
import time
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import rows
from graphcl.cli.options import parse_settings
from graphcl.datasets import load_dataset
from graphcl.devices import resolve_device
from graphcl.recipes import Recipe, load_recipe
from graphcl.research.rows import scoring_pool
from graphcl.research.trials import Trial, score_method, summarise, train_method

FIRST = ("graph", "recipe_hash", "seed")
LEFT_OUT = ("method", "title", "settings")  # the same in every row; the recipe is added instead


def measure(
    dataset: str, recipe: Recipe, options: argparse.Namespace, device: torch.device
) -> list[dict[str, Any]]:
    """Trains and scores every seed, and writes the rows."""
    graph, settings = load_dataset(dataset), asdict(recipe)
    about = {"recipe": settings, **rows.provenance(device)}
    found: list[dict[str, Any]] = []
    probes: list[Future[Trial]] = []

    def write(*, wait: bool) -> None:
        while probes and (wait or probes[0].done()):
            row = probes.pop(0).result().to_json()
            kept = {key: row[key] for key in row if key not in LEFT_OUT}
            rows.append(options.out, {key: row[key] for key in FIRST} | kept | about)
            found.append(row)

    # Worker processes probe while the next training runs: a probe can take longer than it.
    with scoring_pool(options.jobs) as pool:
        for seed in range(options.first_seed, options.first_seed + options.runs):
            trained = train_method(
                "graphcl", graph, dataset, seed=seed, device=device, settings=settings
            )
            probes.append(pool.submit(score_method, trained, graph, device="cpu"))
            write(wait=False)
        write(wait=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    device = resolve_device(options.device)
    for name in options.recipes:
        began = time.perf_counter()
        recipe = load_recipe(name).with_texts(**parse_settings(options.settings))
        measured = measure(name.removesuffix("-best"), recipe, options, device)
        summary = summarise(measured)
        found = summary.get("accuracy", math.nan)  # of one run a number, of several their mean
        mean, std = (found["mean"], found["std"]) if isinstance(found, dict) else (found, math.nan)
        print(
            f"{name} {options.settings}: {100 * mean:.2f} ± {100 * std:.2f} over {options.runs} "
            f"seeds, {summary.get('failed', 0)} failed, {time.perf_counter() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
