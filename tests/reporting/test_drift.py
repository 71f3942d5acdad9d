"""The drift page: complete, escaped, without a script or a connection."""

import re

import numpy as np
import pytest

from graphcl.evaluation.drift import measure_drift
from graphcl.reporting.drift import drift_page

NASTY = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def about():
    return {
        "version": 3,
        "run": f"run {NASTY}",
        "from": 2,
        "nodes": 62,
        "edges": 100,
        "embedded": 7,
        "changes": {
            "new_nodes": 2,
            "removed_nodes": 1,
            "changed_nodes": 4,
            "edges_before": 90,
            "edges_after": 100,
        },
        "seconds": {"embedding": 0.5},
    }


def drift_of(moved):
    random = np.random.default_rng(0)
    old = random.normal(size=(60, 5)).astype(np.float32)
    new = np.concatenate([old, old[:2]])
    new[moved] += 1
    found = measure_drift(old, new, np.arange(60), np.array([*moved, 60, 61]))
    return found.to_json(lambda row: f"{NASTY} {row}")


def test_it_shows_moves_regions_and_changes(about):
    drift = drift_of([1, 2, 3, 4, 5])
    page = drift_page(about, drift)
    for text in ("How far nodes moved", "Which regions changed", "New nodes", "median move"):
        assert text in page
    assert f"{100 * drift['kept']:.1f} %" in page
    assert page.count("<tr>") >= len(drift["regions"])
    assert "the model is the same" in page


def test_it_runs_nothing_and_loads_nothing(about):
    page = drift_page(about, drift_of([1, 2]))
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=|https?://", page)
    assert "&lt;script&gt;" in page


def test_nothing_was_embedded_again(about):
    page = drift_page(about, drift_of([]))
    assert "No known node was embedded again." in page


def test_more_training_is_said(about):
    page = drift_page({**about, "retrained": {"epochs": 12}}, drift_of([0]))
    assert "the model was trained on" in page
    assert "More epochs" in page
