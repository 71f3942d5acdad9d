"""A study, run on a tiny graph."""

from dataclasses import replace

import torch

from graphcl.research.rows import execute
from graphcl.research.studies import STUDIES
from graphcl.research.studies.study import Plan

CPU = torch.device("cpu")
QUICK = {"epochs": "3", "dim": "8"}
PLAN = Plan(datasets=("cora",), seeds=(0, 1), device=CPU, settings=QUICK)


def run(name, path, **changed):
    study, plan = STUDIES[name], replace(PLAN, **changed)
    found = execute(study.jobs(plan), path, columns=study.columns, device=CPU)
    assert [row["failed"] for row in found if "failed" in row] == []
    return study, found
