"""The Ray Train job: a worker is killed, and the weights are those of an undisturbed training."""

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks import ray_job
from benchmarks.rows import read
from graphcl.tabular.build import build_store
from tests.conftest import random_graph
from tests.groups import command

ROOT = Path(__file__).parents[2]
QUICK = {"epochs": 100, "dim": 8, "batch_nodes": 8, "fan_out": 3, "steps": 0}


def test_the_page_has_the_numbers_of_the_row():
    *_, row = read(ray_job.RESULTS)
    assert (row["code"], row["equal"], row["went_on"]) == (0, True, True)
    assert row["attempts"] == len(row["kills"]) + 1 > 1
    said = re.sub(r"\s+", " ", (ROOT / "docs/operate/ray.md").read_text())
    for one in (f"{row['nodes']:,} nodes", f"{row['epochs']} epochs", f"Ray {row['ray']}"):
        assert one in said
    for one in row["kills"]:
        assert f"rank {one['rank']} after epoch {one['epoch']}" in said
    assert f"{row['seconds']:.0f} s" in said
    assert f"{row['undisturbed_seconds']:.0f} s" in said


@pytest.mark.alone
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_starts_killed_workers_again_and_the_weights_have_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random_graph().save("store")
    build_store(Path("store"), out=Path("parts"), parts=2, order="neighbours")
    changes = [f"--set={key}={value}" for key, value in QUICK.items()]
    options = [*ray_job.OPTIONS, *changes]
    code, _, err = command("train", "parts", "--out", "alone", *options)
    assert code == 0, err
    row = ray_job.job(tmp_path / "parts", tmp_path / "run", options, kill=[1])
    assert row["code"] == 0, row["said"]
    assert ([one["rank"] for one in row["kills"]], row["attempts"]) == ([1], 2)
    assert row["went_on"]
    assert ray_job.weights(Path("run")) == ray_job.weights(Path("alone"))
    assert not Path("run.partial").exists()
