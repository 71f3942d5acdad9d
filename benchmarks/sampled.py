"""Sampled training and exact inference: speed, parts of a step, growth and memory.

usage: python -m benchmarks.sampled WHAT --out ROWS.jsonl [--large]

WHAT: `cpu`     seed nodes per second at 10-10-10 on this CPU, and the share of time that is not
                spent in matrix products
      `growth`  seconds per epoch and peak memory at 10^4 and 10^5 nodes (--large: 10^6 too)
      `embed`   exact embeddings of 10^6 nodes: peak memory against output and graph
      `gpu`     an epoch on a graph of Reddit's size: sampled (also timed in parts), and with all
                nodes as one batch; needs a CUDA GPU
"""

import argparse
import itertools
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import rows
from graphcl.datasets.synthetic import synthetic_graph
from graphcl.devices import peak_memory_bytes, resolve_device
from graphcl.embedding import embed_graph
from graphcl.encoders import build_encoder
from graphcl.graphs.collection import training_subgraph
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import NODE
from graphcl.graphs.tensors import graph_tensors
from graphcl.losses import NTXent, nt_xent
from graphcl.sampling import sample_tree, tree_views
from graphcl.training import FullGraph, train
from graphcl.training.sampled import SampledBatch, SampledGraph
from graphcl.views import Drop

CPU = torch.device("cpu")
PERTURBATION = Drop(0.1, 0.5)
TEMPERATURE = 0.5


def residual(num_features: int, dim: int, device: torch.device) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    return build_encoder("residual", num_features, dim=dim, layers=3, generator=generator).to(
        device
    )


def seconds(work: Callable[[], Any], *, device: torch.device = CPU, repeats: int = 5) -> float:
    """Returns the median of `repeats` runs after one that warms up."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def step_products(batch: SampledBatch, dim: int) -> Callable[[], None]:
    """Returns only the matrix products of a step: forward, backward, both views, the loss."""
    view = batch.draw()[0]
    levels = [level[NODE] for level in view.inputs]
    inputs = torch.cat(levels)
    hidden, sizes = inputs.new_empty, [len(level) for level in levels]
    weight, upper = hidden(inputs.shape[1], dim).normal_(), hidden(2 * dim, dim).normal_()
    gradient = hidden(len(inputs), dim).normal_()
    heights = [sum(sizes[:count]) for count in range(len(sizes) - 1, 0, -1)]
    pairs = [
        (hidden(height, 2 * dim).normal_(), hidden(height, dim).normal_()) for height in heights
    ]
    z, scores = hidden(2 * batch.num_nodes, dim).normal_(), hidden(2 * batch.num_nodes, dim)

    def work() -> None:
        for _ in batch.draw():
            inputs @ weight
            inputs.T @ gradient
            for h, g in pairs:
                h @ upper
                h.T @ g
                g @ upper.T
        tile = torch.mm(z, z.T)
        torch.mm(tile, z, out=scores)

    return work


def one_step(encoder: torch.nn.Module, adam: torch.optim.Adam, batch: SampledBatch) -> None:
    h_1, h_2 = batch.encode(encoder, batch.draw())
    loss = nt_xent(h_1, h_2, TEMPERATURE)
    adam.zero_grad()
    loss.backward()
    adam.step()


def epoch_seconds(graph: Graph, *, dim: int, batch_nodes: int, epochs: int = 2) -> list[float]:
    """Trains with the public loop; the first epoch compiles and warms up."""
    source = SampledGraph.of(graph, device=CPU, batch_nodes=batch_nodes)
    marks: list[float] = [0.0]
    train(
        residual(graph.num_features, dim, CPU),
        source,
        perturbation=PERTURBATION,
        loss=NTXent(TEMPERATURE),
        epochs=epochs,
        on_epoch=lambda metrics: marks.append(metrics.seconds),
    )
    return [after - before for before, after in itertools.pairwise(marks)]


def cpu_rows(*, large: bool) -> list[dict[str, Any]]:
    """Steps of realistic size on a graph of 50,000 nodes, as a whole and in parts."""
    num_nodes, batch_nodes, dim, steps = 50_000, 512, 512, 20 if large else 8
    graph = synthetic_graph(num_nodes, 1_000_000, 602, 41)
    source = SampledGraph.of(graph, device=CPU, batch_nodes=batch_nodes)
    nodes = torch.arange(batch_nodes)
    encoder = residual(602, dim, CPU)
    adam = torch.optim.Adam(encoder.parameters(), lr=1e-3, fused=True)
    batch = source.batch({NODE: nodes}, PERTURBATION, seed=0)
    drops = {"perturbation": PERTURBATION, "own": True, "seed": 0}
    draw = partial(sample_tree, source.topology, {NODE: nodes}, layers=source.layers, seed=0)
    tree, x = draw(), source.topology.x
    parts = {
        "sampling": seconds(draw),
        "gathering": seconds(lambda: tree_views(x, tree, **drops)),
        "encoder, loss and update": seconds(partial(one_step, encoder, adam, batch)),
        "matrix products alone": seconds(step_products(batch, dim)),
    }
    began, done = time.perf_counter(), 0
    for number, one in enumerate(source.epoch(0, 0, perturbation=PERTURBATION)):
        if number == 2:
            began = time.perf_counter()  # the pipeline is full
        one_step(encoder, adam, one)
        if number == steps + 1:
            done = steps
            break
    step = (time.perf_counter() - began) / done
    in_sequence = sum(parts.values()) - parts["matrix products alone"]
    return [
        {
            "what": "sampled step on a CPU, 10-10-10, M = 512, 602 features, dim 512",
            "seconds": step,
            "seeds_per_second": batch_nodes / step,
            "parts": parts,
            "ratio": {
                "not matrix products": 1 - parts["matrix products alone"] / step,
                "not matrix products, without overlap": 1
                - parts["matrix products alone"] / in_sequence,
            },
        }
    ]


def _growth(num_nodes: int, results: Any) -> None:
    graph = synthetic_graph(num_nodes, 10 * num_nodes, 32, 10)
    before = peak_memory_bytes(CPU)
    times = epoch_seconds(graph, dim=32, batch_nodes=512)
    results.put((min(times), peak_memory_bytes(CPU) - before))


def _embed(num_nodes: int, results: Any) -> None:
    graph = synthetic_graph(num_nodes, 10 * num_nodes, 64, 10)
    graph_bytes = graph.x.nbytes + graph.indices.nbytes + graph.indptr.nbytes
    encoder = residual(64, 128, CPU)
    small = synthetic_graph(1000, 5000, 64, 10)
    embed_graph(
        encoder, small, device=CPU
    )  # so that the libraries allocate what they need at first use
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    idle = peak_memory_bytes(CPU) - graph_bytes
    began = time.perf_counter()
    h = embed_graph(encoder, graph, device=CPU)["node"]
    results.put((time.perf_counter() - began, peak_memory_bytes(CPU), idle, graph_bytes, h.nbytes))


def in_new_process(work: Callable[..., None], *arguments: Any) -> tuple[Any, ...]:
    """Runs `work` in a process whose peak memory no other work has raised."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    process = spawn.Process(target=work, args=(*arguments, results))
    process.start()
    found: tuple[Any, ...] = results.get(timeout=1800)
    process.join()
    return found


def growth_rows(*, large: bool) -> list[dict[str, Any]]:
    """Seconds per epoch and memory beyond the graph, at a fixed batch.

    `slope` is the slope from the previous size on log scales; `slope_fitted` is the slope of the
    least-squares line over all sizes.
    """
    sizes = [10**4, 10**5] + ([10**6] if large else [])
    found = [in_new_process(_growth, size) for size in sizes]
    made = []
    for number, (size, (epoch, extra)) in enumerate(zip(sizes, found, strict=True)):
        row = {
            "what": "sampled epoch on a CPU, 10-10-10, M = 512, 32 features, dim 32, degree 20",
            "nodes": size,
            "seconds": epoch,
            "peak_extra_bytes": extra,
        }
        if number:
            slope = math.log(epoch / found[number - 1][0]) / math.log(size / sizes[number - 1])
            row["slope"] = slope
        made.append(row)
    times = [epoch for epoch, _ in found]
    made[-1]["slope_fitted"] = statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(seconds) for seconds in times]
    ).slope
    return made


def embed_rows(*, large: bool) -> list[dict[str, Any]]:  # noqa: ARG001
    spent, peak, idle, graph_bytes, output_bytes = in_new_process(_embed, 10**6)
    return [
        {
            "what": "exact embeddings on a CPU, 10^6 nodes, 64 features, dim 128, degree 20",
            "seconds": spent,
            "peak_bytes": peak,
            "output_bytes": output_bytes,
            "graph_bytes": graph_bytes,
            "process_bytes": idle,
            "ratio": {
                "peak less graph and process to output": (peak - graph_bytes - idle) / output_bytes
            },
        }
    ]


def gpu_rows(*, large: bool) -> list[dict[str, Any]]:  # noqa: ARG001
    """An epoch over the training nodes of a graph of Reddit's size, and its parts."""
    device, batch_nodes, dim = resolve_device("cuda"), 512, 512
    began = time.perf_counter()
    graph = synthetic_graph(device=device)
    generated = time.perf_counter() - began
    source = SampledGraph.of(training_subgraph(graph), device=device, batch_nodes=batch_nodes)
    encoder = residual(602, dim, device)
    marks = [0.0]
    torch.cuda.reset_peak_memory_stats()
    train(
        encoder,
        source,
        perturbation=PERTURBATION,
        loss=NTXent(TEMPERATURE),
        epochs=4,
        on_epoch=lambda metrics: marks.append(metrics.seconds),
    )
    epochs = [after - before for before, after in itertools.pairwise(marks)]
    peak = torch.cuda.max_memory_allocated()
    nodes = torch.arange(batch_nodes, device=device)
    draw = partial(sample_tree, source.topology, {NODE: nodes}, layers=source.layers, seed=0)
    tree, x = draw(), source.topology.x
    batch = source.batch({NODE: nodes}, PERTURBATION, seed=0)
    drops = {"perturbation": PERTURBATION, "own": True, "seed": 0}
    h = [one.detach().requires_grad_() for one in batch.encode(encoder, batch.draw())]
    adam = torch.optim.Adam(encoder.parameters(), lr=1e-3, fused=True)
    timed = partial(seconds, device=device, repeats=20)
    loss = timed(lambda: torch.autograd.grad(nt_xent(*h, TEMPERATURE), h))
    steps = source.steps_per_epoch
    parts = {
        "sampling": timed(draw) * steps,
        "gathering": timed(lambda: tree_views(x, tree, **drops)) * steps,
        "encoder and update": (timed(partial(one_step, encoder, adam, batch)) - loss) * steps,
        "loss": loss * steps,
    }
    whole, whole_peak = whole_graph_epochs(graph, dim, device)
    return [
        {
            "what": "sampled epoch on a GPU, Reddit's size, 10-10-10, M = 512, dim 512",
            "nodes": sum(source.topology.sizes.values()),
            "seconds": statistics.median(epochs[1:]),
            "parts": parts,
            "peak_bytes": peak,
            "graph_generated_in": generated,
        },
        {
            "what": "full-batch epoch on a GPU, Reddit's size, exact NT-Xent of all nodes, dim 512",
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "seconds": statistics.median(whole[1:]),
            "all_epochs": whole,
            "peak_bytes": whole_peak,
        },
    ]


def whole_graph_epochs(graph: Graph, dim: int, device: torch.device) -> tuple[list[float], int]:
    """Trains on all nodes as one batch; returns seconds per epoch and peak memory."""
    source = FullGraph(*graph_tensors(graph, device=device))
    marks = [0.0]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    train(
        residual(graph.num_features, dim, device),
        source,
        perturbation=PERTURBATION,
        loss=NTXent(TEMPERATURE),
        epochs=4,
        on_epoch=lambda metrics: marks.append(metrics.seconds),
    )
    epochs = [after - before for before, after in itertools.pairwise(marks)]
    return epochs, torch.cuda.max_memory_allocated()


WORK = {"cpu": cpu_rows, "growth": growth_rows, "embed": embed_rows, "gpu": gpu_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=WORK)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    device = resolve_device("cuda" if options.what == "gpu" else "cpu")
    about = {"threads": torch.get_num_threads(), **rows.provenance(device)}
    for row in WORK[options.what](large=options.large):
        rows.append(options.out, row | about)
        print(json.dumps(row, indent=2), flush=True)


if __name__ == "__main__":
    main()
