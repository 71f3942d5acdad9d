"""Test accuracy of the shipped recipes over many seeds.

usage: python -m benchmarks.accuracy --out ROWS.jsonl [--recipes cora citeseer pubmed] [--runs 50]
           [--set KEY=VALUE ...] [--device cuda] [--jobs 8]

One row per seed; a training that fails leaves a row that says so. The summary printed at the end
is `graphcl.trials.repeat.summarise` over the rows.
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
from graphcl.trials.repeat import repeat, summarise


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
        recipe = load_recipe(name).with_values(**parse_settings(options.settings))
        found = repeat(
            load_dataset(name), recipe, seeds=range(options.runs), device=device, jobs=options.jobs
        )
        about = {"recipe": asdict(recipe), **rows.provenance(device)}
        for row in found:
            rows.append(options.out, row | about)
        summary = summarise(found)
        mean, std = summary["accuracy"]["mean"], summary["accuracy"]["std"]
        print(
            f"{name} {options.settings}: {100 * mean:.2f} ± {100 * std:.2f} over {options.runs} "
            f"seeds, {summary['failed']} failed, {time.perf_counter() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
