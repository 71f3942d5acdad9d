from graphcl.research.paper.studies import STUDIES, sweeps
from graphcl.research.paper.studies import epochs as epochs_study
from graphcl.research.paper.studies.study import Plan
from tests.research.paper.studies.conftest import CPU


def test_the_grid_covers_the_papers_ranges():
    assert (min(sweeps.EDGE_DROPS), max(sweeps.EDGE_DROPS)) == (0.05, 0.75)
    assert (min(sweeps.FEATURE_DROPS), max(sweeps.FEATURE_DROPS)) == (0.2, 0.8)
    assert {0.1, 0.5, 0.8, 1.0} <= set(sweeps.TEMPERATURES)
    assert {20, 50, 100, 150, 200} <= set(epochs_study.MARKS)


def test_every_batch_size_gets_as_many_updates(tiny, monkeypatch):
    monkeypatch.setattr(sweeps, "BATCHES", (16, 30, 1000, 0))
    plan = Plan(datasets=("cora",), seeds=(0,), device=CPU, settings={"epochs": 20, "dim": 8})
    about = [one for job in STUDIES["batch"].jobs(plan) for one in job.about]
    # 60 nodes: 4 batches of 16, 2 of 30, 1 of all; 1,000 nodes are more than there are.
    assert [(one["batch_nodes"], one["updates"]) for one in about] == [(16, 20), (30, 20), (60, 20)]
