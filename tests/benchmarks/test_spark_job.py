"""The Spark job on two executors: what it wrote, and was built of it, is what DuckDB computes."""

import re
from pathlib import Path

import pytest

from benchmarks import spark_job
from benchmarks.rows import read

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_numbers_of_the_row():
    *_, row = read(spark_job.RESULTS)
    assert row["master"] == "local-cluster[2,1,1024]"
    assert [row[f"{name}_differing"] for name in ("nodes", "edges", "pairs")] == [0, 0, 0]
    page = (ROOT / "docs/operate/spark.md").read_text()
    said = re.sub(r"\s+", " ", page[page.index("It has run ") :])
    for one in ("people", "calls", "nodes", "edges", "pairs"):
        assert f"{row[one]:,}" in said
    assert f"{row['job_seconds']:.0f} s" in said
    assert f"{row['build_seconds']:.0f} s" in said


@pytest.mark.parametrize("spoilt", [None, "nodes", "edges"])
def test_rows_that_differ_are_counted(tmp_path, monkeypatch, spoilt):
    """DuckDB writes the folders in Spark's place."""
    prepare, bases = spark_job.prepare, []

    def submit(folder, **_):
        for name in ("nodes", "edges"):
            below = folder / "tables" / name
            below.mkdir(parents=True)
            some = f"FROM {name} {'WHERE weight <> 7' if name == spoilt == 'edges' else ''}"
            if name == spoilt == "nodes":
                some = "SELECT id, age + (id = '0000003')::INT AS age, region FROM nodes"
            bases[0].execute(f"COPY ({some}) TO '{below}/part-00000.parquet'")
        return 0.0

    def kept(*arguments):
        bases.append(prepare(*arguments))
        return bases[0]

    monkeypatch.setattr(spark_job, "prepare", kept)
    monkeypatch.setattr(spark_job, "submit", submit)
    row = spark_job.measure(tmp_path, people=200, calls=2000)
    assert row["nodes"] == 200
    found = {name: row[f"{name}_differing"] for name in ("nodes", "edges", "pairs")}
    assert (found["nodes"] > 0) == (spoilt == "nodes")
    assert (found["edges"] > 0) == (found["pairs"] > 0) == (spoilt == "edges")
