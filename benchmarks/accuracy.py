"""Test accuracy of the shipped recipes over many seeds.

usage: python -m benchmarks.accuracy --out ROWS.jsonl [--recipes cora citeseer pubmed] [--runs 50]
           [--first-seed 0] [--set KEY=VALUE ...] [--device cuda] [--jobs 8]

Each seed gives one row, written as soon as it and those before it are done; a training that fails
gives a row with the reason. Seeds that ROWS.jsonl holds already are not trained again. A recipe
`cora-best` is trained on `cora`. The summary printed at the end is
`graphcl.research.trials.summarise` over the rows.
"""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.rows import name_commit
from graphcl.cli.options import parse_settings
from graphcl.datasets import load_dataset
from graphcl.devices import resolve_device
from graphcl.recipes import Recipe, load_recipe
from graphcl.research.rows import Job, Row, Scoring, execute
from graphcl.research.trials import scoring_of, summarise, train_method

COLUMNS = ("graph", "recipe_hash", "seed")
LEFT_OUT = ("method", "title", "settings")  # the same in every row; the recipe is added instead


def measure(
    dataset: str, recipe: Recipe, options: argparse.Namespace, device: torch.device
) -> list[Row]:
    """Trains and scores every seed that the file of rows does not hold yet; returns all rows."""
    graph, settings = load_dataset(dataset), asdict(recipe)

    def job(seed: int) -> Job:
        about: Row = {"graph": graph.name, "recipe_hash": recipe.hash, "seed": seed}

        def run() -> Iterator[Scoring]:
            trial = train_method(
                "graphcl", graph, dataset, seed=seed, device=device, settings=settings
            )
            row = {key: value for key, value in trial.row.items() if key not in LEFT_OUT}
            yield scoring_of(about | row | {"recipe": settings}, trial, graph, device=device)

        return Job(f"{dataset}, seed {seed}", (about,), run)

    jobs = [job(options.first_seed + number) for number in range(options.runs)]
    return execute(jobs, options.out, columns=COLUMNS, device=device, workers=options.jobs)


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
    name_commit()
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
