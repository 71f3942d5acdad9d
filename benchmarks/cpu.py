"""Speed and memory on this machine's CPU, with rivals, lower bounds (floors) and ratios.

usage: python -m benchmarks.cpu --out ROWS.jsonl      (what `make bench` runs; under 3 minutes)

Times are medians within this run. Compare ratios, not times, between machines.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks import rows
from benchmarks.rivals import (
    chunked_gradient,
    dense_loss,
    dense_training,
    pyg_encoder,
    pygcl_loss,
)
from graphcl.datasets import load_dataset
from graphcl.devices import peak_memory_bytes
from graphcl.estimator.fitted import Components
from graphcl.estimator.model import GraphCL
from graphcl.graphs.schema import Schema
from graphcl.graphs.tensors import graph_tensors
from graphcl.losses import nt_xent
from graphcl.recipes import load_recipe
from graphcl.training import FullGraph

CPU = torch.device("cpu")
TEMPERATURE = 0.5


def median_seconds(works: dict[str, Callable[[], Any]], rounds: int = 9) -> dict[str, float]:
    """Times the contestants in turn, so that a machine that slows down slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for round_number in range(rounds + 1):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            if round_number:  # the first round warms up
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def views(num_nodes: int, dim: int = 512) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(num_nodes, dim, generator=generator, requires_grad=True) for _ in range(2)]


def loss_row() -> dict[str, Any]:
    """NT-Xent at Cora's size against two plain GEMMs, dense autograd and chunked autograd."""
    h1, h2 = views(2708)
    z, square = torch.randn(5416, 512), torch.randn(5416, 5416)
    pygcl = pygcl_loss(TEMPERATURE)
    seconds = median_seconds(
        {
            "ours": lambda: torch.autograd.grad(nt_xent(h1, h2, TEMPERATURE), (h1, h2)),
            "scores": lambda: z @ z.T,
            "product": lambda: square @ z,
            "dense": lambda: torch.autograd.grad(dense_loss(h1, h2, TEMPERATURE), (h1, h2)),
            "chunked": lambda: chunked_gradient(h1, h2, TEMPERATURE, chunk=1024),
        }
        | ({"PyGCL": lambda: torch.autograd.grad(pygcl(h1, h2), (h1, h2))} if pygcl else {})
    )
    ours, gemms = seconds["ours"], seconds["scores"] + seconds["product"]
    rivals = {"dense autograd": "dense", "chunked autograd": "chunked"}
    rivals |= {f"PyGCL {version('PyGCL')}": "PyGCL"} if pygcl else {}
    return {
        "what": "NT-Xent forward + backward, N = 2,708, d = 512",
        "seconds": ours,
        "floor": {"two plain GEMMs": gemms},
        "rivals": {name: seconds[key] for name, key in rivals.items()},
        "ratio": {
            "to two plain GEMMs": ours / gemms,
            **{f"to {name}": ours / seconds[key] for name, key in rivals.items()},
        },
    }


def encoder_row() -> dict[str, Any]:
    """Two views of Cora drawn, encoded and differentiated, against PyG's message passing."""
    graph, recipe = load_dataset("cora"), load_recipe("cora")
    x, adjacency = graph_tensors(graph, device=CPU, feature_scaling=recipe.feature_scaling)
    parts, generator = Components(recipe), torch.Generator().manual_seed(0)
    (batch,) = FullGraph(x, adjacency, 0).epoch(0, 0, perturbation=parts.perturbation)
    encoder = parts.new_encoder(Schema.plain(graph.num_features), seed=0)
    _, pyg = pyg_encoder(graph, recipe, "cpu")
    pull = [h.detach() for h in views(graph.num_nodes, recipe.dim)]
    weight, both = torch.randn(recipe.dim, recipe.dim), torch.cat(pull)

    def ours() -> None:
        drawn = batch.views(generator)
        torch.autograd.backward(batch.encode(encoder, drawn), pull)

    seconds = median_seconds(
        {
            "ours": ours,
            "PyG": lambda: torch.autograd.backward((pyg(), pyg()), pull),
            "forward": lambda: both @ weight,
            "inputs": lambda: both @ weight.T,
            "weights": lambda: both.T @ both,
        }
    )
    gemms = sum(seconds[key] for key in ("forward", "inputs", "weights"))
    return {
        "what": "Cora, two views drawn, encoded and differentiated",
        "seconds": seconds["ours"],
        "floor": {"the second layer's three GEMMs": gemms},
        "rivals": {"PyG's message passing": seconds["PyG"]},
        "ratio": {
            "to the second layer's three GEMMs": seconds["ours"] / gemms,
            "to PyG's message passing": seconds["ours"] / seconds["PyG"],
        },
    }


def epoch_row() -> dict[str, Any]:
    """An epoch on Cora against its NT-Xent, and a training against a dense one with PyG."""
    graph = load_dataset("cora")
    recipe = load_recipe("cora").replace(epochs=24)
    h1, h2 = views(graph.num_nodes)
    ends, losses, starts = [], [], []

    def loss_in_turn(_: Any) -> None:
        ends.append(time.perf_counter())
        torch.autograd.grad(nt_xent(h1, h2, recipe.temperature), (h1, h2))
        starts.append(time.perf_counter())
        losses.append(starts[-1] - ends[-1])

    GraphCL(recipe, device="cpu").fit(graph, on_epoch=loss_in_turn)
    epochs = [end - start for start, end in zip(starts, ends[1:], strict=False)]
    epoch, loss = statistics.median(epochs), statistics.median(losses)
    few = recipe.replace(epochs=5)
    training = median_seconds(
        {
            "ours": lambda: GraphCL(few, device="cpu").fit(graph),
            "dense": lambda: dense_training(graph, few, "cpu"),
        },
        rounds=3,
    )
    return {
        "what": "Cora, one epoch",
        "seconds": epoch,
        "floor": {"its NT-Xent": loss},
        "rivals": {"dense autograd with PyG": training["dense"] / 5},
        "ratio": {
            "to its NT-Xent": epoch / loss,
            "to dense autograd with PyG": training["ours"] / training["dense"],
        },
    }


def _large_loss(results: Any) -> None:
    h1, h2 = views(19717)
    before = peak_memory_bytes(CPU)
    began = time.perf_counter()
    torch.autograd.grad(nt_xent(h1, h2, TEMPERATURE), (h1, h2))
    results.put((time.perf_counter() - began, peak_memory_bytes(CPU) - before))


def _pubmed() -> tuple[Any, Any]:
    return load_dataset("pubmed"), load_recipe("pubmed").replace(epochs=1, batch_nodes=2048)


def _pubmed_epoch(results: Any) -> None:
    graph, recipe = _pubmed()
    model = GraphCL(recipe, device="cpu").fit(graph)
    results.put((model.seconds_, peak_memory_bytes(CPU)))


def _dense_pubmed_epoch(results: Any) -> None:
    graph, recipe = _pubmed()
    began = time.perf_counter()
    dense_training(graph, recipe, "cpu")
    results.put((time.perf_counter() - began, peak_memory_bytes(CPU)))


def in_new_process(work: Callable[[Any], None]) -> tuple[float, int]:
    """Runs `work` in a process whose peak memory no other work has raised."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    process = spawn.Process(target=work, args=(results,))
    process.start()
    found: tuple[float, int] = results.get(timeout=170)
    process.join()
    return found


def large_loss_row() -> dict[str, Any]:
    """NT-Xent on all of Pubmed: its memory beyond the inputs, and its time.

    The two GEMMs are measured on 1,024 rows, because all rows would need a matrix of 6 GB.
    """
    seconds, extra = in_new_process(_large_loss)
    z, strip = torch.randn(2 * 19717, 512), torch.randn(1024, 2 * 19717)
    parts = median_seconds({"scores": lambda: z[:1024] @ z.T, "product": lambda: strip @ z}, 3)
    gemms = sum(parts.values()) * len(z) / 1024
    return {
        "what": "NT-Xent forward + backward, N = 19,717, d = 512",
        "seconds": seconds,
        "peak_extra_bytes": extra,
        "floor": {"two plain GEMMs": gemms},
        "rivals": {"dense autograd, bytes of one similarity matrix": 4 * (2 * 19717) ** 2},
        "ratio": {
            "to two plain GEMMs": seconds / gemms,
            "memory to one similarity matrix": extra / (4 * (2 * 19717) ** 2),
        },
    }


def pubmed_row() -> dict[str, Any]:
    """An epoch of Pubmed in batches: seconds and the whole process's memory."""
    seconds, peak = in_new_process(_pubmed_epoch)
    dense_seconds, dense_peak = in_new_process(_dense_pubmed_epoch)
    h1, h2 = views(2048)
    loss = median_seconds(
        {"loss": lambda: torch.autograd.grad(nt_xent(h1, h2, TEMPERATURE), (h1, h2))}, rounds=5
    )["loss"]
    steps = 19717 / 2048
    return {
        "what": "Pubmed, one epoch, batch_nodes = 2,048",
        "seconds": seconds,
        "peak_bytes": peak,
        "floor": {"its NT-Xent": steps * loss},
        "rivals": {
            "dense autograd with PyG": dense_seconds,
            "dense autograd with PyG, bytes": dense_peak,
        },
        "ratio": {
            "to its NT-Xent": seconds / (steps * loss),
            "to dense autograd with PyG": seconds / dense_seconds,
            "memory to dense autograd with PyG": peak / dense_peak,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    about = {"threads": torch.get_num_threads(), **rows.provenance(CPU)}
    for make_row in (loss_row, encoder_row, epoch_row, pubmed_row, large_loss_row):
        row = make_row()
        rows.append(options.out, row | about)
        print(json.dumps(row, indent=2), flush=True)


if __name__ == "__main__":
    main()
