"""The Spark job of docs/operate/spark.md on two executors, and parts of what it writes.

usage: python -m benchmarks.spark_job [--people 200000] [--calls 2000000] [--out ROWS.jsonl]

`spark-submit` runs examples/clusters/spark_job.py as `local-cluster[2,1,1024]`: a master and two
executors of one core and 1 GB, which are processes of their own and exchange rows by sockets on
this machine. The tables are random, with self-calls, calls of unknown people and people who are
listed twice. DuckDB computes from the same tables what the job should write, by SQL of its own, and
what the built graph should hold; the row says how many rows differ. It needs pyspark and Java.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow
import torch

from benchmarks.rows import append, provenance
from graphcl.cli.main import run
from graphcl.graphs.graph import Graph

RESULTS = Path(__file__).parent / "results/spark_job.jsonl"
JOB = Path(__file__).parents[1] / "examples/clusters/spark_job.py"
MASTER, PARTS = "local-cluster[2,1,1024]", 2
# What the job should write. `hash` is DuckDB's, so tables are the same with the same DuckDB.
TABLES = {
    "people": """SELECT printf('%07d', i % {people}) AS id,
        18 + (i % {people}) % 61 + 0.5::DOUBLE AS age,
        ['north', 'east', 'south', 'west'][1 + (i % {people}) % 4] AS region
        FROM range({people} + {people} // 100) t(i)""",
    "calls": """SELECT printf('%07d', hash(i) % ({people} + {people} // 100)) AS caller,
        printf('%07d', hash(i + {calls}) % ({people} + {people} // 100)) AS callee,
        (1 + hash(-i) % 30)::BIGINT AS minutes FROM range({calls}) t(i)
        UNION ALL SELECT id, id, 5 FROM people LIMIT {calls} + 100""",
}
EXPECTED = {
    "nodes": "SELECT DISTINCT id, age, region FROM people",
    "edges": """SELECT caller AS source, callee AS target, sum(minutes)::DOUBLE AS weight FROM calls
        WHERE caller <> callee AND caller IN (SELECT id FROM people)
        AND callee IN (SELECT id FROM people) GROUP BY ALL""",
    "pairs": """SELECT least(source, target) AS u, greatest(source, target) AS v,
        sum(weight) AS weight FROM edges GROUP BY ALL""",
}


def prepare(folder: Path, people: int, calls: int) -> duckdb.DuckDBPyConnection:
    """Writes the job's tables, and returns a database that holds what should come of them."""
    base = duckdb.connect()
    for name, query in TABLES.items():
        base.execute(f"CREATE TABLE {name} AS {query.format(people=people, calls=calls)}")
        (folder / name).mkdir()
        base.execute(f"COPY {name} TO '{folder / name}/part-0.parquet'")
    for name, query in EXPECTED.items():
        base.execute(f"CREATE TABLE {name} AS {query}")
    return base


def submit(folder: Path, job: Path = JOB, master: str = MASTER) -> float:
    """Runs a job in a folder, on this machine's loopback alone; returns the seconds it took."""
    began = time.perf_counter()
    here = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(folder / "work")}
    words = ["spark-submit", "--master", master, "--conf", "spark.ui.enabled=false", str(job)]
    program = Path(sys.executable).parent / words[0]  # pyspark's
    done = subprocess.run(
        [str(program), *words[1:]],
        cwd=folder,
        env=os.environ | here | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"the job failed:\n{done.stderr[-5000:]}")
    return time.perf_counter() - began


def differing(base: duckdb.DuckDBPyConnection, name: str, found: str) -> int:
    """Returns how many rows are in one of two tables alone."""
    both = f"(FROM {name} EXCEPT ALL {found}) UNION ALL ({found} EXCEPT ALL FROM {name})"
    return counted(base, f"({both})")


def counted(base: duckdb.DuckDBPyConnection, table: str) -> int:
    """Returns the number of rows of a table."""
    ((count,),) = base.execute(f"SELECT count(*) FROM {table}").fetchall()
    return int(count)


def build(folder: Path) -> tuple[float, pyarrow.Table]:
    """Builds parts of the folders; returns the seconds, and the pairs of nodes with an edge."""
    began = time.perf_counter()
    words = [
        "build",
        "--edges",
        str(folder / "tables/edges"),
        "--nodes",
        str(folder / "tables/nodes"),
    ]
    words += ["--label", "region", "--weight", "weight", "--parts", str(PARTS), "--order", "hash"]
    if run([*words, "--out", str(folder / "parts"), "--quiet"]):
        raise SystemExit("the folders could not be built")
    seconds = time.perf_counter() - began
    graph = Graph.open(folder / "parts", restored=False)
    ids = np.asarray(graph.node_ids)
    u, v = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr)), np.asarray(graph.indices)
    once = u < v
    ends = np.sort(np.stack([ids[u[once]], ids[v[once]]]), axis=0)
    weight = np.asarray(graph.edge_weight)[once].astype(np.float64)
    return seconds, pyarrow.table({"u": ends[0].tolist(), "v": ends[1].tolist(), "weight": weight})


def measure(folder: Path, people: int, calls: int, master: str = MASTER) -> dict[str, Any]:
    """Returns the row of a job and of what is built from its folders."""
    base = prepare(folder, people, calls)
    row: dict[str, Any] = {"benchmark": "spark_job", "master": master, "people": people}
    row |= {"calls": calls, "job_seconds": round(submit(folder, master=master), 1)}
    for name in ("nodes", "edges"):
        read = f"SELECT {'id, age, region' if name == 'nodes' else 'source, target, weight'} "
        read += f"FROM '{folder}/tables/{name}/*.parquet'"
        row[f"{name}_differing"] = differing(base, name, read)
        files = list((folder / "tables" / name).glob("*.parquet"))
        row[f"{name}_files"] = len(files)
        row[f"{name}_bytes"] = sum(one.stat().st_size for one in files)
        row[name] = counted(base, name)
    seconds, pairs = build(folder)
    base.register("built", pairs)
    row |= {"build_seconds": round(seconds, 1), "parts": PARTS, "pairs": len(pairs)}
    return row | {"pairs_differing": differing(base, "pairs", "FROM built")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=200_000)
    parser.add_argument("--calls", type=int, default=2_000_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if shutil.which("java") is None:
        raise SystemExit("spark_job: needs Java (Debian: default-jre-headless)")
    import pyspark

    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), given.people, given.calls)
    row |= {"load": round(os.getloadavg()[0], 2), "cores": os.cpu_count()}
    row |= {"spark": pyspark.__version__} | provenance(torch.device("cpu"))
    append(given.out, row)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
