"""Exact NT-Xent, forward and backward, on a GPU: ours, its rivals, and what the GPU allows.

usage: python -m benchmarks.nt_xent_gpu --out ROWS.jsonl [--nodes N ...] [--dim 512] [--ours]

`dense` computes the 2N × 2N similarity matrix under autograd, as public implementations of
contrastive learning on graphs do. `chunked` computes it 4,096 rows at a time. PyGCL's own loss is
measured if `GCL` is installed (see `benchmarks.rivals.pygcl_loss`). The floors are the faster of
the loss's two product shapes in cuBLAS in bf16, and a copy. `vs_ours` is a row's time divided by
ours in bf16. `share_of_gemm` is the rate of three full products, 6 (2N)² d, divided by the measured
GEMM rate; symmetry saves one of the products, so it can exceed 1. Takes about three minutes on an
H200.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks import rows
from benchmarks.rivals import chunked_gradient, dense_loss, pygcl_loss
from graphcl.kernels import recording
from graphcl.losses import nt_xent

TEMPERATURE = 0.5
NODES = (2_708, 19_717, 116_000, 232_965)  # Cora, Pubmed, half of Reddit, Reddit


def measure(work: Callable[[], Any]) -> dict[str, Any]:
    """Times 10 to 50 runs (3 if one takes over 2 s) by CUDA events, after two that warm up."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    _once(work)  # may compile
    estimate = _once(work)
    peak = torch.cuda.max_memory_allocated() - before
    repeats = 3 if estimate > 2000 else max(10, min(50, int(500 / estimate)))
    times = [_once(work) for _ in range(repeats)]
    return {
        "median_ms": statistics.median(times),
        "min_ms": min(times),
        "repeats": repeats,
        "peak_extra_bytes": peak,
    }


def _once(work: Callable[[], Any]) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def floors(d: int) -> tuple[float, float]:
    """Returns bf16 TFLOP/s of the loss's products and GB/s of a copy."""
    n = 40_960
    z = normalize(torch.randn(n, d, device="cuda")).bfloat16()
    square = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    other = torch.empty_like(square)
    scores = measure(lambda: torch.mm(z, z.T, out=other))["median_ms"]
    products = measure(lambda: torch.mm(square, z))["median_ms"]
    copy = measure(lambda: other.copy_(square))["median_ms"]
    return 2 * n * n * d / min(scores, products) / 1e9, 4 * n * n / copy / 1e6


def contestants(h1: Tensor, h2: Tensor) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    nodes = len(h1)

    def ours(precision: str) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(
            nt_xent(h1, h2, TEMPERATURE, precision=precision), (h1, h2)
        )

    yield "ours", "bf16", ours("bf16")
    if 2 * nodes <= recording.ROWS:
        yield "ours, not recorded", "bf16", unrecorded(ours("bf16"))
    if nodes <= NODES[1]:
        yield "ours, CUDA graph", "bf16", recorded(ours("bf16"))
    yield "ours", "tf32", ours("tf32")
    if nodes <= NODES[1]:
        yield "ours", "float32", ours("float32")
    yield "dense", "tf32", lambda: torch.autograd.grad(dense_loss(h1, h2, TEMPERATURE), (h1, h2))
    yield "chunked", "tf32", lambda: chunked_gradient(h1, h2, TEMPERATURE)
    pygcl = pygcl_loss(TEMPERATURE)
    if pygcl:
        yield "PyGCL", "tf32", lambda: torch.autograd.grad(pygcl(h1, h2), (h1, h2))


def unrecorded(work: Callable[[], Any]) -> Callable[[], Any]:
    """Returns `work` as its first calls are, before the loss is recorded."""

    def call() -> None:
        recording._calls.clear()
        recording._recordings.clear()
        work()

    return call


def recorded(work: Callable[[], Any]) -> Callable[[], Any]:
    """Records `work` in a CUDA graph, as the training loop does, and returns its replay."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph.replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--ours", action="store_true", help="leave the rivals out")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True  # for the rivals; ours sets its own precision
    gemm, copy = floors(options.dim)
    about = {
        "gemm_tflops_measured": round(gemm, 1),
        "copy_gb_per_s_measured": round(copy),
        **rows.provenance(torch.device("cuda")),
    }
    for nodes in options.nodes:
        h1, h2 = (
            torch.randn(nodes, options.dim, device="cuda", requires_grad=True) for _ in range(2)
        )
        ours_ms = 0.0
        for what, precision, work in contestants(h1, h2):
            if options.ours and not what.startswith("ours"):
                continue
            row: dict[str, Any] = {"what": what, "n_nodes": nodes, "d": options.dim}
            row["precision"] = precision
            try:
                row |= measure(work)
                ours_ms = ours_ms or row["median_ms"]  # ours in bf16 comes first
                row["vs_ours"] = round(row["median_ms"] / ours_ms, 3)
                rate = 6 * (2 * nodes) ** 2 * options.dim / row["median_ms"] / 1e9
                row["share_of_gemm"] = round(rate / gemm, 3)
            except torch.cuda.OutOfMemoryError:
                row["failed"] = "out of memory"
            shown = {key: row.get(key) for key in ("median_ms", "peak_extra_bytes", "failed")}
            print(f"N={nodes} {what} {precision}: {shown} {row.get('share_of_gemm')}", flush=True)
            rows.append(options.out, row | about)


if __name__ == "__main__":
    main()
