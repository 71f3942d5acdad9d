"""Seconds and peak memory of reading wide node tables, beside pandas and scikit-learn.

usage: python -m benchmarks.wide_tables [--results ROWS.jsonl] [--only CASE]

Each system reads each table in its own process: `graphcl build` to a store, `graphcl.read_tables`
to a graph in memory (what `train` does before it trains), and pandas with scikit-learn to a matrix
of float32 with missing values filled in, sparse where mostly zero. `peak_bytes` is the resident
memory that the operating system reports for the process; its imports are part of it. `cpu_seconds`
shows whether the machine was busy: it is far less than `seconds` where others used the cores.

The facebook graph is read from the gallery (`GRAPHCL_DATA`); the other tables are generated.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import scipy.sparse
import torch

from benchmarks.rows import append, provenance
from graphcl.datasets import load_dataset

RESULTS = Path(__file__).parent / "results" / "wide_tables.jsonl"
CASES = {
    "facebook_pagepage, parquet": "22,470 × 4,714",
    "numbers, csv": "1,000,000 × 200",
    "mostly zeros, parquet": "100,000 × 10,000",
}
READ = """
import sys, graphcl
graph = graphcl.read_tables(sys.argv[1], sys.argv[2])
print(graph)
"""
PANDAS = """
import sys, numpy, pandas, scipy.sparse
from sklearn.impute import SimpleImputer
path = sys.argv[2]
table = pandas.read_csv(path) if path.endswith(".csv") else pandas.read_parquet(path)
x = table.drop(columns="id").to_numpy(numpy.float32)
x = SimpleImputer().fit_transform(x)
if numpy.count_nonzero(x) < 0.1 * x.size:
    x = scipy.sparse.csr_array(x)
edges = pandas.read_parquet(sys.argv[1])
print(x.shape, len(edges))
"""


def generate(folder: Path, case: str) -> tuple[Path, Path]:
    """Writes the two tables of a case and returns their paths."""
    random = np.random.default_rng(0)
    nodes = folder / f"nodes.{case.rsplit(', ', 1)[-1]}"
    if case.startswith("facebook"):
        graph = load_dataset("facebook_pagepage")
        _write(nodes, graph.x.toarray().astype(np.int64), rows=graph.num_nodes)
        ends = graph.edge_index()
    else:
        rows, columns = (int(size.replace(",", "")) for size in CASES[case].split(" × "))
        ends = random.integers(0, rows, (2, 3 * rows))
        with_zeros = "zeros" in case
        x = scipy.sparse.random_array((rows, columns), density=0.01, format="csr", rng=random)
        blocks = (
            x[start : start + 25_000].toarray().astype(np.float32)
            if with_zeros
            else random.integers(0, 10_000, (25_000, columns)) / 100
            for start in range(0, rows, 25_000)
        )
        _write_blocks(nodes, blocks)
    edges = folder / "edges.parquet"
    table = pyarrow.table({"source": ends[0], "target": ends[1]})
    pyarrow.parquet.write_table(table, edges)
    return edges, nodes


def _write(path: Path, x: np.ndarray, *, rows: int) -> None:
    _write_blocks(path, (x[start : start + 25_000] for start in range(0, rows, 25_000)))


def _write_blocks(path: Path, blocks: object) -> None:
    first, writer = 0, None
    for block in blocks:
        names = {"id": pyarrow.array(np.arange(first, first + len(block)))}
        names |= {f"f{i}": np.ascontiguousarray(block[:, i]) for i in range(block.shape[1])}
        table = pyarrow.table(names)
        if writer is None:
            kind = pyarrow.csv.CSVWriter if path.suffix == ".csv" else pyarrow.parquet.ParquetWriter
            writer = kind(path, table.schema)
        writer.write_table(table)
        first += len(block)
    writer.close()


def measure(system: str, edges: Path, nodes: Path, folder: Path) -> dict[str, object]:
    """Reads the tables in a process of its own; returns its seconds and peak memory."""
    command = [sys.executable, "-c", PANDAS if system == "pandas" else READ, edges, nodes]
    if system == "graphcl build":
        command = [sys.executable, "-m", "graphcl", "build", "--edges", edges, "--nodes", nodes]
        command += ["--out", folder / "store"]
    watched = (
        "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], "
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(code, used.ru_maxrss, used.ru_utime + used.ru_stime)"
    )
    began = time.perf_counter()
    arguments = [sys.executable, "-c", watched, *map(str, command)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    code, peak, busy = done.stdout.split()
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "ok": code == "0",
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(float(busy), 1),
        "peak_bytes": int(peak) * unit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", choices=CASES, action="append")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for case in given.only or CASES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            edges, nodes = generate(folder, case)
            for system in ("graphcl build", "graphcl read_tables", "pandas"):
                measured = measure(system, edges, nodes, folder)
                row = {
                    "benchmark": "wide_tables",
                    "case": case,
                    "table": CASES[case],
                    "system": system,
                    "file_bytes": nodes.stat().st_size,
                    **measured,
                    **provenance(torch.device("cpu")),
                }
                append(given.results, row)
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
