"""Training over parts on hosts of their own: a step's seconds and bytes, memory, and losses.

usage: python -m benchmarks.parts_training [--nodes 1000000] [--parts 4] [--orders neighbours hash]
           [--rates 10gbit] [--memory 1G | third] [--caches 0 256000000] [--steps 200]
           [--topologies asked auto] [--no-whole] [--table] [--folder DIR] --out ROWS.jsonl

The graph, its parts and the hosts are those of `benchmarks.parts_on_hosts`; `--folder` may be the
same, and keeps them. Each host runs the worker of `benchmarks.parts_train` with one thread, on its
own part: with `--topologies asked` it maps no other, as hosts with disks of their own could not.
One process trains on the whole graph in the numbering of the parts, outside all hosts, and losses
are compared step by step (`loss_difference`), unless `--no-whole`.

Of a row, `sent_bytes` (for samples: neighbours, rows, and filling the cache), `wire_bytes` (all
that the wire carried, with gradients and losses) and `compute_seconds` (of the processor) are per
step, and of the process with the most; `all_sent_bytes`, `fill_bytes` and `rows_needed` are sums
over processes. `step_seconds` leaves out the first steps, and so the filling of the cache, which is
in `first_step_seconds`. `load` is the number of busy processes before the start.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hosts import memory_bytes, run_hosts
from benchmarks.namespaces import why_not
from benchmarks.parts_on_hosts import CPU, ONE_THREAD, divide, forget, prepare, summary
from benchmarks.parts_train import launched
from benchmarks.rows import append, provenance, read
from graphcl.graphs.graph import Graph

RESULTS = Path(__file__).parent / "results/parts_training.jsonl"
LIMIT = 3600  # seconds of one training


def alone(folder: Path, path: Path, options: list[str]) -> dict[str, Any]:
    """Returns the figures of one process on the whole graph in the numbering of the parts."""
    kept = folder / f"alone-{path.name}-{'-'.join(options).replace('--', '')}.json"
    if not kept.exists():
        joined = folder / f"joined-{path.name}"
        Graph.open(path, restored=False).save(joined)
        (found,) = launched(joined, [*options, "--whole"], 1, folder)
        shutil.rmtree(joined)
        kept.write_text(json.dumps(found))
    figures: dict[str, Any] = json.loads(kept.read_text())
    return figures


def trained(
    folder: Path, path: Path, parts: int, options: list[str], memory: int | None, rate: str
) -> tuple[dict[str, Any], list[float]]:
    """Trains on hosts; returns what they did, and the losses."""
    words = [sys.executable, "-m", "benchmarks.parts_train", "--worker", str(path)]
    words += [*options, "--row", str(folder / "step-{rank}.json")]
    forget(path)
    about = summary(
        run_hosts(words, parts, memory=memory, rate=rate, seconds=LIMIT, environment=ONE_THREAD)
    )
    wire = max(about.pop("sent_bytes"))
    del about["received_bytes"]
    if about["failed"]:
        return about, []
    each = [json.loads((folder / f"step-{rank}.json").read_text()) for rank in range(parts)]
    steps = each[0]["steps"]
    hits = [one["cache_hits"] for one in each if one["cache_hits"] is not None]
    about |= {
        "steps": steps,
        "step_seconds": round(1 / min(one["steps_per_second"] for one in each), 4),
        "first_step_seconds": max(one["first_step_seconds"] for one in each),
        "compute_seconds": max(one["cpu_seconds_per_step"] for one in each),
        "sent_bytes": max(one["sent_bytes"] for one in each),
        "wire_bytes": wire / steps if parts > 1 else 0,
        "all_sent_bytes": sum(one["sent_bytes"] for one in each),
        "fill_bytes": sum(one["fill_bytes"] for one in each),
        "rows_needed": sum(one["rows_needed"] for one in each),
        "cache_hits": float(np.mean(hits)) if hits else None,
        "process_bytes": max(one["peak_bytes"] for one in each),
        "last_loss": each[0]["losses"][-1],
    }
    return about, each[0]["losses"]


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the table of scaling.md: training on hosts with a limit of memory."""
    lines = []
    for row in (row for row in rows if row["memory_limit"] and not row["failed"]):
        cells = [f"{row['nodes']:,}", f"`{row['order']}`"]
        cells.append(f"{row['cache_bytes'] / 1e6:.0f} MB" if row["cache_bytes"] else "–")
        cells += [f"{row['step_seconds']:.2f} s", f"{row['first_step_seconds']:.0f} s"]
        cells.append(f"{row['all_sent_bytes'] / 1e6:.1f} MB")
        cells.append(f"{100 * row['cache_hits']:.0f} %" if row["cache_bytes"] else "–")
        held = [f"{max(row[name]) / 1e9:.2f} GB" for name in ("anonymous_bytes", "group_bytes")]
        cells += [*held, f"{row['loss_difference']:.0e}"]
        lines.append(f"| {' | '.join(cells)} |")
    head = "| nodes | order | cache | a step | first step | sent a step by all | rows in the cache "
    head += "| memory of a host | with mapped files | largest difference of a loss |"
    return [head, "|" + 10 * "---|", *lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10**6)
    parser.add_argument("--parts", type=int, nargs="+", default=[4])
    parser.add_argument("--orders", nargs="+", default=["neighbours", "hash"])
    parser.add_argument("--rates", nargs="*", default=["10gbit"])
    parser.add_argument("--memory", help="limit of a host: 1G, or third of the store's size")
    parser.add_argument("--caches", nargs="+", type=int, default=[0, 256 * 10**6])
    parser.add_argument("--topologies", nargs="+", default=["asked"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-nodes", type=int, default=1024)
    parser.add_argument("--no-whole", action="store_true", help="compare with no other training")
    parser.add_argument("--folder", type=Path, help="keeps the store and the parts")
    parser.add_argument("--table", action="store_true", help="print the table of scaling.md")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.table:
        print("\n".join(table(read(RESULTS))))
        return
    if given.out is None:
        parser.error("--out is required")
    why = why_not()
    if why:
        raise SystemExit(f"parts_training: {why}")
    shared = ["--steps", str(given.steps), "--dim", str(given.dim)]
    shared += ["--batch-nodes", str(given.batch_nodes)]
    with nullcontext(given.folder) if given.folder else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        about = prepare(folder, given.nodes) | {"dim": given.dim, "batch_nodes": given.batch_nodes}
        memory = about["store_bytes"] // 3 if given.memory == "third" else None
        if given.memory and given.memory != "third":
            memory = memory_bytes(given.memory)
        wanted = [
            (parts, order, topology, cache, rate)
            for parts in given.parts
            for order in given.orders
            for topology in given.topologies
            for cache in given.caches
            for rate in given.rates
        ]
        for parts, order, topology, cache, rate in wanted:
            path, divided = divide(folder, parts, order)
            whole = {} if given.no_whole else alone(folder, path, shared)
            load = round(os.getloadavg()[0], 2)  # of others, if it is not ours
            options = [*shared, "--cache", str(cache), "--topology", topology]
            found, losses = trained(folder, path, parts, options, memory, rate)
            row = {"benchmark": "parts_training", "case": "step", **about, **divided}
            row |= {"topology": topology, "cache_bytes": cache, **found}
            if whole and losses:
                apart = np.abs(np.subtract(losses, whole["losses"]))
                row["loss_difference"] = float(apart.max())
                row["step_seconds_alone"] = round(1 / whole["steps_per_second"], 4)
                row["process_bytes_alone"] = whole["peak_bytes"]
            row |= {"load": load, "cores": os.cpu_count(), **provenance(CPU)}
            append(given.out, row)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
