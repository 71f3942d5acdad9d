"""One recipe, many seeds."""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from graphcl.devices import peak_memory_bytes, reset_peak_memory
from graphcl.estimator import GraphCL
from graphcl.evaluation import linear_probe
from graphcl.graph import Graph
from graphcl.recipes import Recipe

SCORES = ("accuracy", "micro_f1", "macro_f1", "val_accuracy")


def repeat(
    graph: Graph,
    recipe: Recipe,
    *,
    seeds: Sequence[int],
    device: torch.device,
    verbose: bool = False,
) -> list[dict[str, Any]]:
    """Trains and probes once per seed.

    Returns:
        One row per seed: the probe's scores, the recipe's hash, training seconds, peak memory.
    """
    rows = []
    for number, seed in enumerate(seeds, start=1):
        reset_peak_memory(device)
        model = GraphCL(recipe, seed=seed, device=str(device))
        score = linear_probe(model.fit_transform(graph), graph)
        row = {
            "graph": graph.name,
            "recipe_hash": recipe.hash,
            "seed": seed,
            **asdict(score),
            "loss": model.history_[-1].loss,
            "train_seconds": model.seconds_,
            "peak_memory_bytes": peak_memory_bytes(device),
        }
        rows.append(row)
        if verbose:
            print(
                f"run {number}/{len(seeds)}: seed {seed}  accuracy {100 * score.accuracy:.1f} %  "
                f"{model.seconds_:.1f} s",
                file=sys.stderr,
                flush=True,
            )
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns each score as a number for one row, else as ``{"mean": …, "std": …}``.

    The deviation is the sample's (n − 1).
    """
    summary: dict[str, Any] = {"split": rows[0]["split"]}
    for name in SCORES:
        values = [row[name] for row in rows]
        summary[name] = (
            values[0]
            if len(values) == 1
            else {"mean": statistics.fmean(values), "std": statistics.stdev(values)}
        )
    return summary
