"""Test accuracy of the shipped recipes over many seeds.

usage: python -m benchmarks.accuracy --out ROWS.jsonl [--recipes cora citeseer pubmed] [--runs 50]
           [--set KEY=VALUE ...] [--device cuda]

One row per seed; a training that fails leaves a row that says so. The summary printed at the end
is `graphcl.experiments.repeat.summarise` over the rows.
"""

import argparse
from pathlib import Path

from benchmarks import rows
from graphcl.cli.common import parse_settings
from graphcl.datasets import CATALOGUE, load_dataset
from graphcl.devices import resolve_device
from graphcl.errors import TrainingError
from graphcl.experiments.repeat import repeat, summarise
from graphcl.recipes import load_recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve_device(options.device)
    about = rows.provenance(device)
    for name in options.recipes:
        recipe = load_recipe(name).with_values(**parse_settings(options.settings))
        graph = load_dataset(next(known for known in CATALOGUE if name.startswith(known)))
        finished = []
        for seed in range(options.runs):
            try:
                (row,) = repeat(graph, recipe, seeds=[seed], device=device)
                finished.append(row)
            except TrainingError as error:
                row = {"graph": graph.name, "seed": seed, "failed": str(error)}
            rows.append(options.out, {"recipe": name, **row, **about})
        accuracy = summarise(finished)["accuracy"]
        print(f"{name}: {accuracy} over {len(finished)} of {options.runs} seeds", flush=True)


if __name__ == "__main__":
    main()
