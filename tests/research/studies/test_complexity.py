import pytest

from graphcl.research.studies import STUDIES, complexity
from tests.research.studies.conftest import run


def test_complexity_times_both_ways_to_train(tmp_path, monkeypatch):
    monkeypatch.setitem(complexity.SIZES, "cpu", (64, 128))
    study, found = run("complexity", tmp_path / "r.jsonl", seeds=(0,), datasets=())
    assert {(row["mode"], row["nodes"]) for row in found} == {
        (mode, nodes) for mode in ("sampled", "full") for nodes in (64, 128)
    }
    assert all(row["seconds"] > 0 for row in found)
    assert study.draw(found) is not None


def test_the_exponent_is_a_slope():
    lines = [{"nodes": n, "mean": 3e-4 * n**2} for n in (10, 100, 1000)]
    assert complexity.exponent(lines) == pytest.approx(2)
    assert complexity.exponent([{"nodes": 1, "mean": 5.0}, *lines]) == pytest.approx(2)
    assert complexity.exponent(lines[:1]) is None


def test_devices_are_not_averaged_with_each_other():
    found = [
        {
            "graph": "synthetic",
            "seed": 0,
            "mode": "full",
            "device": device,
            "nodes": n,
            "seconds": s,
        }
        for device, rate in (("cpu", 1.0), ("GPU", 0.01))
        for n, s in ((10, rate * 10), (20, rate * 20))
    ]
    study = STUDIES["complexity"]
    lines = study.summary(found)
    assert [line["mean"] for line in lines] == [0.1, 0.2, 10, 20]
    assert all(line["exponent"] == pytest.approx(1) for line in lines)
    assert len(study.draw(found).axes[0].get_legend_handles_labels()[0]) == 2
