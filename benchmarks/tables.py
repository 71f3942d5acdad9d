"""Seconds and peak memory of `graphcl build` on a generated list of edges.

usage: python -m benchmarks.tables [--edges 10000000] [--results ROWS.jsonl]

Each case runs in its own process on two cores. Its peak is the resident memory that the operating
system reports, which includes mapped pages of the store. `cpu_seconds` shows whether the machine
was busy: it is at most twice `seconds`, and close to that on an idle machine. Needs psutil.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import psutil
import torch

from benchmarks.rows import append, provenance

RESULTS = Path(__file__).parent / "results" / "tables.jsonl"
CORES = 2
EDGES_PER_NODE = 10
CASES = ("integer ids, parquet", "text ids, csv", "text ids and weights, csv.gz")


def generate(folder: Path, edges: int, case: str) -> list[str]:
    """Writes a random graph and returns the arguments of `graphcl build`."""
    nodes = edges // EDGES_PER_NODE
    text = "text" in case
    shown = "'user ' || lpad({}::VARCHAR, 9, '0')" if text else "{}"
    suffix = case.rsplit(", ", 1)[-1]
    ends = ", ".join(
        f"{shown.format(f'(hash(i, {place}) % {nodes})')} AS {name}"
        for place, name in enumerate(("source", "target"))
    )
    weight = ", 1 + hash(i, 2) % 100 AS weight" if "weights" in case else ""
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {CORES}")
        connection.execute(
            f"COPY (SELECT {ends}{weight} FROM range({edges}) t(i)) TO '{folder}/edges.{suffix}'"
        )
        connection.execute(
            f"COPY (SELECT {shown.format('i')} AS id, i % 7 AS a, i % 11 AS b FROM "
            f"range({nodes}) t(i)) TO '{folder}/nodes.parquet'"
        )
    tables = ["--edges", f"{folder}/edges.{suffix}", "--nodes", f"{folder}/nodes.parquet"]
    return [*tables, *(["--weight", "weight"] if weight else [])]


def measure(arguments: list[str], folder: Path) -> dict[str, object]:
    """Runs `graphcl build`; returns its seconds, its peak memory and the size of the graph."""
    command = [sys.executable, "-m", "graphcl", "build", *arguments, "--json"]
    bound = ["taskset", "-c", "0,1"] if (os.cpu_count() or 1) > CORES else []
    began, peak, busy = time.perf_counter(), 0, 0.0
    with subprocess.Popen(
        [*bound, *command, "--out", f"{folder}/store"], stdout=subprocess.PIPE, text=True
    ) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                peak = max(peak, watched.memory_info().rss)
                used = watched.cpu_times()
                busy = used.user + used.system
            except psutil.NoSuchProcess:
                break
            time.sleep(0.02)
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
    return {
        "nodes": found["nodes"],
        "edges": found["edges"],
        "seconds": round(time.perf_counter() - began, 1),
        "build_seconds": round(found["seconds"], 1),
        "cpu_seconds": round(busy, 1),
        "peak_bytes": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=10**7)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    for case in CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            arguments = generate(folder, given.edges, case)
            measured = measure(arguments, folder)
        row = {
            "benchmark": "tables",
            "case": case,
            "rows": given.edges,
            **measured,
            "cores": CORES,
            "duckdb": duckdb.__version__,
            **provenance(torch.device("cpu")),
        }
        append(given.results, row)
        print(json.dumps(row))


if __name__ == "__main__":
    main()
