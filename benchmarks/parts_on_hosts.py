"""Exact embedding over parts on hosts of their own: seconds, memory, and bytes on limited wires.

usage: python -m benchmarks.parts_on_hosts [--nodes 1000000] [--parts 4] [--orders neighbours hash]
           [--rates 1gbit 200mbit] [--memory 1G | third] [--phases | --divide | --table]
           [--folder DIR] --out ROWS.jsonl

The graph is the ring of `benchmarks.store`, written in bounded memory: ten edges per node, 64
features in float32. `graphcl build` divides it, and `graphcl embed RUN PARTS` runs as one
process on each host of `benchmarks.hosts`, with one thread. `--memory third` limits a host to a
third of the store's size. A row has what the wires of all hosts carried, and the peak of memory of
each host, with mapped files and without. Weights are those of one epoch on a small graph.

`--phases` runs the same inference by a worker that times it from the inside: seconds in which a
process computes, and seconds and bytes of its exchanges. `benchmarks.scaling_model` is checked
against these rows. Parts of 16 and 64 are only divided, and their boundaries counted (`--divide`).
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import store
from benchmarks.hosts import memory_bytes, run_hosts
from benchmarks.namespaces import why_not
from benchmarks.parts import DIM, boundary_rows, measure
from benchmarks.rows import append, provenance, read
from graphcl.datasets.synthetic import synthetic_graph
from graphcl.distributed import ALONE, group
from graphcl.encoders import LayeredEncoder
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.model import GraphCL
from graphcl.graphs.relation import EDGE, NODE
from graphcl.partitioned import boundary, inference
from graphcl.partitioned.boundary import Wire, open_own_part
from graphcl.partitioned.features import PreparedPart, prepare_part_like
from graphcl.store.header import read_store
from graphcl.store.reader import PartNodes, open_part

ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
CPU = torch.device("cpu")
RESULTS = Path(__file__).parent / "results/parts_on_hosts.jsonl"
LIMIT = 3600  # seconds of one embedding


def prepare(folder: Path, nodes: int) -> dict[str, Any]:
    """Writes a store and a run into a folder, unless they are there; returns what the store is."""
    if not (folder / "store").exists():
        store.build(folder / "store", nodes, np.float32)
    if not (folder / "run").exists():
        small = synthetic_graph(2000, 20_000, store.FEATURES, 10)
        GraphCL("default", epochs=1, dim=DIM, device="cpu").fit(small).save(folder / "run")
    size = sum(file.stat().st_size for file in (folder / "store").iterdir())
    about = {"nodes": nodes, "edges": nodes * store.SIDE, "features": store.FEATURES, "dim": DIM}
    return about | {"store_bytes": size}


def divide(folder: Path, parts: int, order: str) -> tuple[Path, dict[str, Any]]:
    """Divides the store, unless that is done; returns the parts and a description."""
    path, kept = folder / f"{order}-{parts}", folder / f"{order}-{parts}.json"
    if path.exists() and kept.exists():  # counting takes minutes at ten million nodes
        return path, json.loads(kept.read_text())
    seconds = peak = None
    if not path.exists():
        options = ["--parts", str(parts), "--order", order, "--out", str(path)]
        found = measure(["build", str(folder / "store"), *options])
        seconds, peak = found["seconds"], found["peak_bytes"]
    each = [boundary_rows(open_part(path, number)) for number in range(parts)]
    about = {"order": order, "parts": parts, "cut_share": read_store(path).cut_share}
    about |= {"boundary_rows": sum(each), "most_boundary_rows": max(each)}
    about |= {"partition_seconds": seconds, "partition_peak_bytes": peak}
    kept.write_text(json.dumps(about))
    return path, about


def embedded(folder: Path, path: Path, parts: int, memory: int | None, rate: str) -> dict[str, Any]:
    """Runs `graphcl embed` on hosts; returns what they did."""
    out = folder / "shards"
    words = [sys.executable, "-m", "graphcl", "embed", str(folder / "run"), str(path)]
    words += ["--out", str(out), "--overwrite"]
    options: dict[str, Any] = {"memory": memory, "rate": rate, "environment": ONE_THREAD}
    forget(path)
    found = run_hosts(words, parts, seconds=LIMIT, **options)
    return summary(found)


def forget(path: Path) -> None:
    """Drops the pages of all files, so that the hosts that read them are charged for them."""
    for file in path.rglob("*.npy"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def phases(folder: Path, path: Path, parts: int, rate: str) -> dict[str, Any]:
    """Runs the worker on hosts; returns what they did, and the seconds of each phase."""
    words = [sys.executable, "-m", "benchmarks.parts_on_hosts", "--worker"]
    words += [str(folder / "run"), str(path), str(folder / "phases-{rank}.json")]
    found = run_hosts(words, parts, rate=rate, seconds=LIMIT, environment=ONE_THREAD)
    about = summary(found)
    if not about["failed"]:
        each = [json.loads((folder / f"phases-{r}.json").read_text()) for r in range(parts)]
        for name in each[0]:
            about[name] = [one[name] for one in each]
    return about


def summary(found: dict[str, Any], *, loud: bool = True) -> dict[str, Any]:
    """Returns what hosts did with a list for each figure; prints what failed ones said if loud."""
    each = found.pop("each")
    output = found.pop("output")
    failed = [one["rank"] for one in each if one["code"] != 0]
    for rank in failed if loud else ():
        print(f"--- host {rank} ---\n{output[rank]}", file=sys.stderr)
    names = ("code", "group_bytes", "anonymous_bytes", "sent_bytes", "received_bytes")
    return found | {name: [one[name] for one in each] for name in names} | {"failed": failed}


def worker(run: Path, path: Path, out: Path) -> None:
    """Embeds this process's part, and writes how long it computed and exchanged, and how much."""
    fitted = Fitted.read(run)
    spent = {"exchange_seconds": 0.0, "payload_bytes": 0, "exchanges": 0}
    plain = boundary.exchange

    def timed(rows: torch.Tensor, *more: Any) -> torch.Tensor:
        began = time.perf_counter()
        found = plain(rows, *more)
        spent["exchange_seconds"] += time.perf_counter() - began
        spent["payload_bytes"] += rows.element_size() * int(rows.numel())
        spent["exchanges"] += 1
        return found

    boundary.exchange = timed
    with group(CPU) as share:
        part = open_own_part(path, share)
        encoder = fitted.encoder
        assert isinstance(encoder, LayeredEncoder)
        prepared = prepare_part_like(part, fitted.schema, fitted.scaling, Wire(share))
        inference.embed_part(encoder, _tiny(prepared), share=ALONE)  # compiles what it needs
        if share.world > 1:
            torch.distributed.barrier()
        spent |= {"exchange_seconds": 0.0, "payload_bytes": 0, "exchanges": 0}
        began, cpu = time.perf_counter(), time.process_time()
        inference.embed_part(encoder, prepared, share=share)
        own = time.perf_counter() - began
        spent["cpu_seconds"] = time.process_time() - cpu
        if share.world > 1:
            torch.distributed.barrier()
        spent["total_seconds"] = time.perf_counter() - began
        spent["compute_seconds"] = own - spent["exchange_seconds"]
    out.write_text(json.dumps(spent))


def host_table(rows: list[dict[str, Any]]) -> list[str]:
    """Returns the table of scaling.md: embedding on hosts, by order and wire."""
    lines = []
    embedded = [row for row in rows if row["case"] == "embed"]
    for row in sorted(embedded, key=lambda row: (row["nodes"], row["memory_limit"] or 0)):
        size = f"{row['nodes']:,}"
        limit = f"{row['memory_limit'] / 1e9:.2f} GB" if row["memory_limit"] else "–"
        sent = f"{sum(row['sent_bytes']) / 1e9:.2f} GB"
        held = [f"{max(row[name]) / 1e9:.2f} GB" for name in ("anonymous_bytes", "group_bytes")]
        cells = [size, f"`{row['order']}`", f"{100 * row['cut_share']:.0f} %", row["rate"] or "–"]
        took = f"{row['seconds']:.0f} s" if not row["failed"] else "failed"
        lines.append(f"| {' | '.join([*cells, limit, sent, *held, took])} |")
    head = "| nodes | order | edges cut | wire | limit of a host | sent by all | memory of a host "
    return [f"{head}| with mapped files | time |", "|---|---|---|---|---|---|---|---|---|", *lines]


def _tiny(prepared: PreparedPart) -> PreparedPart:
    """Returns a part of three nodes with the types of another."""
    part = prepared.nodes[NODE]
    edges = {"indptr": np.array([0, 1, 2, 2])}
    edges["indices"] = np.array([1, 0], prepared.part.edges[EDGE, False]["indices"].dtype)
    fields = {**part.fields, "x": np.array(part.fields["x"][:3])}
    own = {NODE: PartNodes(replace(part.type, starts=np.array([0, 3])), 0, slice(0, 3), fields)}
    whole = replace(prepared.part, number=0, nodes=own, edges={(EDGE, False): edges})
    return replace(prepared, part=whole, nodes=own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10**6)
    parser.add_argument("--parts", type=int, nargs="+", default=[4])
    parser.add_argument("--orders", nargs="+", default=["neighbours", "hash"])
    parser.add_argument("--rates", nargs="*", default=["1gbit", "200mbit"])
    parser.add_argument("--memory", help="limit of a host: 1G, or third of the store's size")
    parser.add_argument("--phases", action="store_true")
    parser.add_argument("--divide", action="store_true", help="only count boundaries")
    parser.add_argument("--folder", type=Path, help="keeps the store, the parts and the run")
    parser.add_argument("--table", action="store_true", help="print the table of scaling.md")
    parser.add_argument("--worker", type=Path, nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.worker:
        worker(*given.worker)
        return
    if given.table:
        print("\n".join(host_table(read(RESULTS))))
        return
    if given.out is None:
        parser.error("--out is required")
    why = "" if given.divide else why_not()
    if why:
        raise SystemExit(f"parts_on_hosts: {why}")
    with nullcontext(given.folder) if given.folder else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        about = prepare(folder, given.nodes)
        print(f"store and run: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        memory = about["store_bytes"] // 3 if given.memory == "third" else None
        if given.memory and given.memory != "third":
            memory = memory_bytes(given.memory)
        for parts in given.parts:
            for order in given.orders:
                path, divided = divide(folder, parts, order)
                rates = [None] if given.divide else given.rates or [""]
                for rate in rates:
                    load = round(os.getloadavg()[0], 2)  # of others, if it is not ours
                    case, found = "divided", {}
                    if rate is not None and given.phases:
                        case, found = "phases", phases(folder, path, parts, rate)
                    elif rate is not None:
                        case, found = "embed", embedded(folder, path, parts, memory, rate)
                    row = {"benchmark": "parts_on_hosts", "case": case, **about, **divided, **found}
                    row |= {"load": load, "cores": os.cpu_count(), **provenance(CPU)}
                    append(given.out, row)
                    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
