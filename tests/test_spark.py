"""The guide to Spark: its job runs where pyspark is, and folders in Spark's layout become parts."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from benchmarks.spark_job import submit
from graphcl.cli.main import run
from graphcl.graphs.graph import Graph
from graphcl.store.header import read_store


def built(*options):
    """Builds parts of the folders in `tables`, and returns them as one graph."""
    tables = ["--edges", "tables/edges", "--nodes", "tables/nodes", "--out", "parts"]
    assert run(["build", *tables, "--order", "hash", *options]) == 0
    return Graph.open(Path("parts"), restored=False)


def pairs(graph):
    ids = list(graph.node_ids)
    return {frozenset((ids[u], ids[v])) for u, v in graph.edge_index().T}


@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed")
def test_the_job_of_the_guide_writes_what_build_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = [("007", "042"), ("042", "A-1"), ("A-1", "007"), ("042", "B-9"), ("B-9", "C-3")]
    ids, (callers, callees) = ["007", "042", "A-1", "B-9", "C-3"], zip(*calls, strict=True)
    for name, table in {
        "calls": {"caller": callers, "callee": callees, "minutes": [3, 1, 2, 5, 4]},
        "people": {"id": ids, "age": [31.0, 45.0, 27.0, 60.0, 38.0], "region": list("nsnsn")},
    }.items():
        Path(name).mkdir()
        pyarrow.parquet.write_table(pyarrow.table(table), f"{name}/part-0.parquet")
    submit(tmp_path, master="local[1]")
    assert Path("tables/edges/_SUCCESS").exists()
    graph = built("--label", "region", "--weight", "weight", "--parts", "2")
    assert sorted(graph.node_ids) == ids
    assert pairs(graph) == set(map(frozenset, calls))


def write_as_spark(folder, table, files, *, partition=False):
    """Writes a table as Spark does: several files, a mark, checksums, what a failed task left."""
    bounds = np.linspace(0, len(table), files + 1).astype(int)
    for number, start in enumerate(bounds[:-1]):
        below = folder / f"day={number % 3}" if partition else folder
        below.mkdir(parents=True, exist_ok=True)
        name = f"part-{number:05d}-3f6a1c2e-9d1b-4c1e-8a77-0a1b2c3d4e5f-c000.snappy.parquet"
        rows = table.slice(start, bounds[number + 1] - start)
        pyarrow.parquet.write_table(rows, below / name, compression="snappy")
        (below / f".{name}.crc").write_bytes(b"crc\x00")
    (folder / "_SUCCESS").touch()
    (folder / "._SUCCESS.crc").write_bytes(b"crc\x00")
    left = folder / "_temporary/0/task_1"
    left.mkdir(parents=True)
    (left / "part-00099.snappy.parquet").write_bytes(b"PAR1 half a file")
    (folder / "_metadata.parquet").write_bytes(b"not rows")


@pytest.mark.parametrize("partition", [False, True])
def test_folders_in_the_layout_of_spark_become_parts(tmp_path, monkeypatch, capsys, partition):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    ids = [f"{row:05d}" if row % 2 else f"Zoë {row}" for row in range(300)]
    ends = random.integers(0, 300, (2, 900))
    ends = ends[:, ends[0] != ends[1]]
    source, target = ([ids[one] for one in side] for side in ends.tolist())
    edges = pyarrow.table({"source": source, "target": target})
    x = random.normal(size=(300, 3))
    columns = {f"x{place}": x[:, place] for place in range(3)}
    topic = [f"topic {row % 4}" for row in range(300)]
    nodes = pyarrow.table({"id": ids, **columns, "topic": topic})
    write_as_spark(Path("tables/edges"), edges, 7, partition=partition)
    write_as_spark(Path("tables/nodes"), nodes, 5)
    graph = built("--label", "topic", "--parts", "3", "--json")
    assert json.loads(capsys.readouterr().out)["nodes"] == 300
    assert len(read_store(Path("parts"))) == 3
    assert sorted(graph.node_ids) == sorted(ids)
    assert pairs(graph) == {frozenset(pair) for pair in zip(source, target, strict=True)}
    rows = [ids.index(name) for name in graph.node_ids]
    assert [graph.class_names[one] for one in graph.y] == [topic[row] for row in rows]
    # Columns are standardised by training, not here: features are the numbers as they came.
    np.testing.assert_allclose(np.asarray(graph.x), x[rows], rtol=1e-6)
    assert run(["check", "parts"]) == 0
