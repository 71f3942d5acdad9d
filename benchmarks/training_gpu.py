"""Whole trainings on a GPU: ours against GRACE-style training with PyG and a dense loss.

usage: python -m benchmarks.training_gpu --out ROWS.jsonl

A row contains the dataset, the epochs, the median seconds over repeats and the peak GPU memory. The
rival has the same encoder width, perturbation and optimiser. It uses PyG's message passing and
`dropout_edge`, and the 2N × 2N similarity matrix under autograd in TF32, as public implementations
of node-level contrastive learning do.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import rows
from benchmarks.rivals import dense_training
from graphcl.datasets import load_dataset
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.recipes import Recipe, load_recipe


def ours(graph: Graph, recipe: Recipe, device: str) -> None:
    GraphCL(recipe, device=device).fit(graph)


def measure(run: Callable[[], None], device: str, repeats: int) -> tuple[float, int]:
    """Returns the median seconds of `repeats` runs after one that warms up, and peak memory."""
    on_gpu = device == "cuda"
    seconds = []
    for number in range(repeats + 1):
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        if on_gpu:
            torch.cuda.synchronize()
        if number or repeats == 0:
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds), torch.cuda.max_memory_allocated() if on_gpu else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--datasets", nargs="+", default=["cora", "citeseer", "pubmed"])
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    about = rows.provenance(torch.device(options.device))
    for name in options.datasets:
        graph = load_dataset(name)
        recipe = load_recipe(name).replace(epochs=options.epochs)
        for what, run, repeats in (
            ("ours", ours, 5),
            ("dense autograd with PyG", dense_training, 1 if name == "pubmed" else 3),
        ):
            run_once = lambda: run(graph, recipe, options.device)  # noqa: B023, E731
            seconds, peak = measure(run_once, options.device, repeats)
            row = {"what": what, "graph": name, "epochs": options.epochs, "seconds": seconds}
            rows.append(options.out, row | {"repeats": repeats, "peak_bytes": peak} | about)
            print(f"{name} {what}: {seconds:.3f} s, {peak / 2**30:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
