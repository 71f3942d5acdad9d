"""Test accuracy of the shipped recipes over many seeds.

usage: python -m benchmarks.accuracy --out ROWS.jsonl [--recipes cora citeseer pubmed] [--runs 50]
           [--set KEY=VALUE ...] [--device cuda] [--jobs 8]

Each seed gives one row; a training that fails gives a row with the reason. The summary printed at
the end is `graphcl.trials.methods.summarise` over the rows.
"""

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks import rows
from graphcl.cli._shared.options import parse_settings
from graphcl.datasets import load_dataset
from graphcl.devices import resolve_device
from graphcl.recipes import load_recipe
from graphcl.trials.methods import score_method, summarise, train_method
from graphcl.trials.runner import scoring_pool

FIRST = ("graph", "recipe_hash", "seed")
LEFT_OUT = ("method", "title", "settings")  # the same in every row; the recipe is added instead


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    device = resolve_device(options.device)
    for name in options.recipes:
        began = time.perf_counter()
        graph, settings = load_dataset(name), parse_settings(options.settings)
        recipe = load_recipe(name).with_values(**settings)
        # Worker processes probe while the next training runs: a probe can take longer than it.
        with scoring_pool(options.jobs) as pool:
            probes = []
            for seed in range(options.runs):
                trained = train_method(
                    "graphcl", graph, name, seed=seed, device=device, settings=settings
                )
                probes.append(pool.submit(score_method, trained, graph, device="cpu"))
            found = [probe.result().to_json() for probe in probes]
        about = {"recipe": asdict(recipe), **rows.provenance(device)}
        for row in found:
            kept = {key: row[key] for key in row if key not in LEFT_OUT}
            rows.append(options.out, {key: row[key] for key in FIRST} | kept | about)
        summary = summarise(found)
        mean, std = summary["accuracy"]["mean"], summary["accuracy"]["std"]
        print(
            f"{name} {options.settings}: {100 * mean:.2f} ± {100 * std:.2f} over {options.runs} "
            f"seeds, {summary['failed']} failed, {time.perf_counter() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
