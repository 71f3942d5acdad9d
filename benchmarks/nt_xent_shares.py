"""The share of one of several GPUs in an exact NT-Xent, forward and backward, on one GPU.

usage: python -m benchmarks.nt_xent_shares --out ROWS.jsonl [--nodes 232965 1000000]
           [--worlds 1 2 4 8] [--dim 512] [--precision bf16]

One process of R has 2M / R of the 2M rows. It multiplies them with themselves and with the tables
of the R - 1 others, twice: for the sums and for the gradient. Here one GPU does the work of one
such process; the others' tables are random rows of the right size, and nothing is sent.
`share_of_gemm` is the rate of three full products, 6 (2M / R) 2M d, divided by the measured GEMM
rate. `wire_bytes` is what the process would receive: the tables of all others, twice, and the
weights of their rows. While a table is multiplied the next one travels, so it hides behind
`per_table_ms` if the wire carries `table_bytes` in that time (`least_gb_per_s`).
"""

import argparse
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks import rows
from benchmarks.nt_xent_gpu import TEMPERATURE, floors
from graphcl.distributed import Share
from graphcl.kernels.nt_xent_triton import FusedPairs


def one_rank(nodes: int, world: int, dim: int, precision: Any) -> dict[str, Any]:
    """Times the first of `world` processes."""
    part = Share(0, world).rows(nodes)
    own = part.stop - part.start
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    h_1, h_2 = (torch.randn(own, dim, device="cuda") for _ in range(2))
    before = torch.cuda.memory_allocated()
    other = FusedPairs(*(torch.randn(own, dim, device="cuda") for _ in range(2)), 0.5, precision)
    table, weights = other.travelling(), torch.rand(2 * own, device="cuda")
    del other
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(5)]
    one = torch.ones((), device="cuda")
    marks[0].record()
    pairs = FusedPairs(h_1, h_2, TEMPERATURE, precision)
    pairs.sum_own()
    marks[1].record()
    for _ in range(world - 1):
        pairs.sum_other(table, own)
    marks[2].record()
    pairs.finish_sums()
    pairs.pull_own()
    marks[3].record()
    for _ in range(world - 1):
        pairs.pull_other(table, weights, own)
    pairs.gradient(h_1, h_2, one, nodes)
    marks[4].record()
    marks[4].synchronize()
    steps = [a.elapsed_time(b) for a, b in pairwise(marks)]
    bytes_of_table = table.numel() * table.element_size()
    row = {
        "nodes": nodes,
        "world": world,
        "d": dim,
        "precision": precision,
        "ms": sum(steps),
        "own_ms": steps[0] + steps[2],
        "others_ms": steps[1] + steps[3],
        "peak_extra_bytes": torch.cuda.max_memory_allocated() - before,
        "table_bytes": bytes_of_table,
        "wire_bytes": (world - 1) * (2 * bytes_of_table + 8 * own),
    }
    if world > 1:
        per_table = min(steps[1], steps[3]) / (world - 1)
        row["per_table_ms"] = per_table
        row["least_gb_per_s"] = bytes_of_table / per_table / 1e6
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nodes", type=int, nargs="+", default=[232_965, 1_000_000])
    parser.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--precision", default="bf16")
    options = parser.parse_args()
    gemm, _ = floors(options.dim)
    about = {"gemm_tflops_measured": round(gemm, 1), **rows.provenance(torch.device("cuda"))}
    one_rank(20_000, 2, options.dim, options.precision)  # compiles
    one_rank(200_000, 2, options.dim, options.precision)
    for nodes in options.nodes:
        for world in reversed(options.worlds):
            row = one_rank(nodes, world, options.dim, options.precision)
            own = 2 * (nodes // world)
            rate = 6 * own * 2 * nodes * options.dim / row["ms"] / 1e9
            row |= {"tflops": rate, "share_of_gemm": rate / gemm}
            figures = f"{row['ms']:,.0f} ms, {row['share_of_gemm']:.0%} of GEMM"
            print(f"M={nodes} R={world}: {figures}, {row['peak_extra_bytes'] / 1e9:.1f} GB")
            rows.append(options.out, row | about)


if __name__ == "__main__":
    main()
