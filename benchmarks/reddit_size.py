"""Systems of Table 2 on a generated graph of Reddit's size and shape, or of a share of its size.

usage: python -m benchmarks.reddit_size --out ROWS.jsonl [--share 0.05] [--methods raw fastgcn]
           [--seeds 1] [--device auto]

Reddit cannot be had everywhere. This graph has its numbers of nodes, edges, features and classes
and the paper's split, but communities of its own: scores show that a system runs at this size and
learns, and are no comparison with the paper's. A share keeps the mean degree, as long as there is
room for it. Settings are those for Reddit. A row is one seed of one system.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import append, provenance, read
from graphcl.datasets.synthetic import EDGES, NODES, synthetic_graph
from graphcl.devices import resolve_device
from graphcl.research.output import markdown_table
from graphcl.research.rows import Row
from graphcl.research.systems import SYSTEMS
from graphcl.research.trials import repeat_method

RESULTS = Path(__file__).parent / "results/reddit_size.jsonl"
METHODS = ("raw", "fastgcn")


def measure(methods: list[str], *, share: float, seeds: int, device: str) -> Iterator[Row]:
    """Yields the rows of each system, as it is done."""
    where = resolve_device(device)
    began = time.perf_counter()
    graph = synthetic_graph(round(NODES * share), round(EDGES * share), device=where)
    about = {
        "graph": "generated in Reddit's shape",
        "share": share,
        "nodes_of_graph": graph.num_nodes,
        "directed_edges": 2 * graph.num_edges,
        "graph_seconds": time.perf_counter() - began,
    }
    for method in methods:
        for row in repeat_method(
            method, graph, "reddit", seeds=range(seeds), device=where, verbose=True
        ):
            yield row | about | provenance(where)


def section(rows: list[Row]) -> str:
    """Returns what the page of the paper's tables says of these rows; empty without any."""
    latest = {(row["share"], row["method"], row["seed"]): row for row in rows}
    lines = [
        [
            SYSTEMS[method].title,
            f"{row['nodes_of_graph']:,}",
            f"{row['directed_edges']:,}",
            f"{row['micro_f1']:.3f}",
            f"{row['train_seconds']:,.0f}",
            row["device"],
        ]
        for (_, method, _), row in sorted(latest.items())
        if "failed" not in row
    ]
    if not lines:
        return ""
    head = ["Method", "Nodes", "Directed edges", "Micro-F1", "Seconds", "Measured on"]
    return (
        "Reddit is not among the datasets here. A generated graph has its shape (602 features, 41 "
        "classes, the paper's split) and communities of its own, so these scores show that a "
        "system runs and learns, and cannot be compared with the paper's. Reddit has "
        f"{NODES:,} nodes and {2 * EDGES:,} directed edges.\n\n{markdown_table(head, lines)}"
    ).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=sorted(SYSTEMS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    for row in measure(asked.methods, share=asked.share, seeds=asked.seeds, device=asked.device):
        append(asked.out, row)
    print(section(read(asked.out)))


if __name__ == "__main__":
    main()
