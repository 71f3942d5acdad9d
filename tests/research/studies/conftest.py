"""A study, run on a tiny graph."""

import torch

from graphcl.research.rows import execute
from graphcl.research.studies import STUDIES
from graphcl.research.studies.study import Plan

CPU = torch.device("cpu")
QUICK = {"epochs": "3", "dim": "8"}


def run(name, path, seeds=(0, 1), datasets=("cora",)):
    study = STUDIES[name]
    plan = Plan(datasets=datasets, seeds=seeds, device=CPU, settings=dict(QUICK))
    found = execute(study.jobs(plan), path, columns=study.columns, device=CPU)
    assert [row["failed"] for row in found if "failed" in row] == []
    return study, found
