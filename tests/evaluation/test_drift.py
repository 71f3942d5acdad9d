"""How far embeddings moved, against loops over all nodes."""

import json

import numpy as np
import pytest

from graphcl.evaluation.drift import divide, measure_drift


@pytest.fixture(scope="module")
def tables():
    random = np.random.default_rng(0)
    centres = random.normal(size=(4, 8)) * 5
    old = (centres[np.arange(120) % 4] + random.normal(size=(120, 8))).astype(np.float32)
    kept = np.setdiff1d(np.arange(120), [3, 50])
    new = np.concatenate([old[kept], centres[[1, 1, 2]]]).astype(np.float32)
    embedded = np.array([5, 9, 30, 118, 119, 120])
    new[[5, 9, 30]] += 2
    return old, new, kept, embedded


def nearest_by_loops(z, k):
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    found = []
    for row in range(len(z)):
        cosines = unit @ unit[row]
        order = [other for other in np.argsort(-cosines).tolist() if other != row]
        found.append(set(order[:k]))
    return found


def test_moves_and_neighbours_are_those_of_loops(tables):
    old, new, kept, embedded = tables
    drift = measure_drift(old, new, kept, embedded)
    far = [np.linalg.norm(new[r] - old[kept[r]]) / np.linalg.norm(old[kept[r]]) for r in (5, 9, 30)]
    assert (drift.common, drift.embedded, drift.measured) == (118, 3, 118)
    assert drift.moved["median"] == pytest.approx(np.median(far))
    assert drift.moved["largest"] == pytest.approx(max(far))
    assert sum(drift.histogram) == 3
    assert [row for row, _ in drift.farthest] == sorted(
        (5, 9, 30), key=lambda r: -far[(5, 9, 30).index(r)]
    )
    before, after = nearest_by_loops(old[kept], 10), nearest_by_loops(new[:118], 10)
    shares = np.array([len(a & b) / 10 for a, b in zip(before, after, strict=True)])
    assert drift.kept == pytest.approx(shares.mean())
    assert drift.kept_embedded == pytest.approx(shares[[5, 9, 30]].mean())


def test_regions_say_where_it_happened(tables):
    old, new, kept, embedded = tables
    drift = measure_drift(old, new, kept, embedded)
    assert sum(one.nodes for one in drift.regions) == 118
    assert sum(one.joined for one in drift.regions) == 3
    assert sum(one.nodes * one.embedded for one in drift.regions) == pytest.approx(3)
    weighted = sum(one.nodes * one.kept for one in drift.regions) / 118
    assert weighted == pytest.approx(drift.kept)


def test_nothing_moved(tables):
    old = tables[0]
    drift = measure_drift(old, old, np.arange(120), np.zeros(0, np.int64))
    assert drift.moved is None
    assert drift.kept == 1
    assert drift.kept_embedded is None
    assert drift.lines() == ["neighbours kept: 100.0 % of the 10 nearest"]


def test_large_graphs_are_measured_on_a_sample(tables):
    old, new, kept, embedded = tables
    drift = measure_drift(old, new, kept, embedded, sample=40)
    assert (drift.measured, drift.embedded) == (40, 3)
    assert measure_drift(old, new, kept, embedded, sample=40) == drift


@pytest.mark.parametrize("common", [0, 1, 2])
def test_few_nodes(common):
    z = np.eye(3, dtype=np.float32)
    drift = measure_drift(z, z, np.arange(common), np.arange(3))
    assert drift.common == common
    assert (drift.kept is None) == (common < 2)


def test_as_json_and_lines(tables):
    drift = measure_drift(*tables)
    found = json.loads(json.dumps(drift.to_json(lambda row: f"id {row}"), allow_nan=False))
    assert found["farthest"][0]["id"].startswith("id ")
    assert all(one.startswith("id ") for one in found["regions"][0]["examples"])
    assert len(found["histogram"]["up_to"]) == len(found["histogram"]["nodes"])
    lines = drift.lines()
    assert lines[0].startswith("moved, of 3 known nodes embedded again: median ")
    assert lines[1].startswith("neighbours kept: ")
    assert lines[2].startswith("region that changed most: ")


def test_a_row_of_zeros_can_move():
    old = np.zeros((2, 3), np.float32)
    new = np.array([[0, 0, 0], [1, 0, 0]], np.float32)
    drift = measure_drift(old, new, np.arange(2), np.arange(2))
    assert drift.moved["largest"] == 1


@pytest.mark.parametrize("moving", [0, 1, 20, 900])
def test_neighbours_after_a_few_moves_are_those_of_all(moving):
    random = np.random.default_rng(moving)
    first = random.normal(size=(1000, 6)).astype(np.float32)
    second = first.copy()
    chosen = random.choice(1000, moving, replace=False)
    second[chosen] += random.normal(size=(moving, 6)).astype(np.float32)
    drift = measure_drift(first, second, np.arange(1000), np.sort(chosen))
    before, after = nearest_by_loops(first, 10), nearest_by_loops(second, 10)
    shares = [len(a & b) / 10 for a, b in zip(before, after, strict=True)]
    assert drift.kept == pytest.approx(np.mean(shares), abs=1e-4)


def test_regions_are_clusters():
    random = np.random.default_rng(0)
    centres = random.normal(size=(3, 8)) * 20
    kind = random.choice(3, 700, p=[0.5, 0.3, 0.2])
    points = centres[kind] + random.normal(size=(700, 8))
    found = divide(points, 3, seed=1)
    assert [set(kind[found == one].tolist()) for one in range(3)] == [{0}, {1}, {2}]
    assert divide(np.ones((5, 2)), 4, seed=0).tolist() == [0] * 5
    two = divide(np.array([[0.0, 1], [1, 0], [1, 0]]), 4, seed=0)
    assert two.tolist() == [1, 0, 0]
