"""Tiny graphs under the names of the paper's datasets."""

from dataclasses import replace

import pytest

from graphcl.research import trials
from tests.conftest import random_collection, random_graph


@pytest.fixture
def tiny(monkeypatch):
    """Cora is 60 nodes; PPI a few small graphs; the others are as they are on this machine."""
    data = {
        "cora": replace(random_graph(), name="cora"),
        "citeseer": replace(random_graph(1), name="citeseer"),
        "ppi": replace(random_collection(), name="ppi", note="made up"),
    }
    monkeypatch.setattr(trials, "load_dataset", data.__getitem__)
    trials.cached_dataset.cache_clear()
    yield data
    trials.cached_dataset.cache_clear()
