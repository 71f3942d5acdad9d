"""Whole trainings on a GPU: ours against a GRACE-style step, dense loss under autograd, with PyG.

usage: python -m benchmarks.training_gpu --out ROWS.jsonl

Each row: dataset, epochs, median seconds over repeats, peak GPU memory. The rival uses the same
encoder width, perturbation and optimiser: PyG's message passing and dropout_edge, and the 2N × 2N
similarity matrix under autograd in TF32, as public implementations of node-level contrastive
learning do.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy, dropout, elu, normalize
from torch_geometric.nn import SimpleConv
from torch_geometric.utils import dropout_edge

from benchmarks import rows
from graphcl.datasets import load_dataset
from graphcl.encoders import MeanPoolingEncoder
from graphcl.estimator import GraphCL
from graphcl.graph import Graph
from graphcl.recipes import Recipe, load_recipe


def ours(graph: Graph, recipe: Recipe, device: str) -> None:
    GraphCL(recipe, device=device).fit(graph)


def dense_rival(graph: Graph, recipe: Recipe, device: str) -> None:
    data = graph.to_pyg().to(device)
    encoder = MeanPoolingEncoder(
        graph.num_features, dim=recipe.dim, layers=recipe.layers, generator=torch.Generator()
    ).to(device)
    pool = SimpleConv(aggr="mean", combine_root="self_loop")
    adam = torch.optim.Adam(encoder.parameters(), lr=recipe.learning_rate)
    targets = torch.arange(2 * graph.num_nodes, device=device).roll(graph.num_nodes)

    def encode() -> torch.Tensor:
        edges, _ = dropout_edge(data.edge_index, p=recipe.edge_drop, force_undirected=True)
        h = pool(dropout(data.x, recipe.feature_drop) @ encoder.weights[0], edges)
        for weight in list(encoder.weights)[1:]:
            h = pool(elu(h), edges) @ weight
        return elu(h) if recipe.layers == 1 else h

    for _ in range(recipe.epochs):
        z = normalize(torch.cat([encode(), encode()]))
        similarity = (z @ z.T / recipe.temperature).fill_diagonal_(-torch.inf)
        loss = 2 * cross_entropy(similarity, targets)
        adam.zero_grad()
        loss.backward()
        adam.step()
        loss.item()


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
        recipe = load_recipe(name).with_values(epochs=options.epochs)
        for what, run, repeats in (
            ("ours", ours, 5),
            ("dense autograd with PyG", dense_rival, 1 if name == "pubmed" else 3),
        ):
            run_once = lambda: run(graph, recipe, options.device)  # noqa: B023, E731
            seconds, peak = measure(run_once, options.device, repeats)
            row = {"what": what, "graph": name, "epochs": options.epochs, "seconds": seconds}
            rows.append(options.out, row | {"repeats": repeats, "peak_bytes": peak} | about)
            print(f"{name} {what}: {seconds:.3f} s, {peak / 2**30:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
