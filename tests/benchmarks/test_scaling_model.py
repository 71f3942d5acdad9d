"""The model is its formulas, written as plain loops; the page has what it says of the rows."""

import random
from pathlib import Path

import pytest

from benchmarks import scaling_model as model

ROOT = Path(__file__).parents[2]


def test_the_boundary_is_that_of_random_ends():
    """Against edges that are drawn: distinct ends outside the part of the first nodes."""
    draw = random.Random(0)
    nodes, degree, parts, cut = 4000, 6, 4, 0.5
    own = nodes // parts
    met = set()
    for _ in range(own * degree):
        if draw.random() < cut:
            met.add(draw.randrange(own, nodes))
    assert model.boundary(nodes, degree, parts, cut) == pytest.approx(len(met), rel=0.05)
    assert model.boundary(nodes, degree, 1, 0) == 0


def test_nodes_some_hops_away_are_elsewhere_as_often_as_walks_are():
    draw, parts, cut, walks = random.Random(1), 5, 0.3, 20_000
    for hops in (0, 1, 3):
        away = 0
        for _ in range(walks):
            place = 0
            for _ in range(hops):
                if draw.random() < cut:
                    place = draw.choice([one for one in range(parts) if one != place])
            away += place != 0
        found = model.outside_share(parts, cut, hops)
        assert found == pytest.approx(away / walks, abs=0.02)
    assert model.outside_share(8, 1 - 1 / 8, 3) == pytest.approx(1 - 1 / 8)  # a hash forgets


def test_bytes_and_seconds_of_a_step():
    parts, cut = 4, 0.25
    counts, total = [512, 5120, 51_200, 512_000], 0.0
    for hop, count in enumerate(counts):
        away = count * model.outside_share(parts, cut, hop)
        drawn = 10 if hop < 3 else 0
        total += away * (8 + 8 * drawn + 64 * 4)
    step = model.step_bytes(parts, cut)
    assert step.sample == pytest.approx(total)
    assert step.loss == 2 * 3 * (2 * 512 * 128 * 4)
    assert model.step_bytes(parts, cut, hits=1).sample < 0.2 * total
    wire = 8e9  # a byte per nanosecond
    assert model.step_seconds(10, step, wire) == pytest.approx(10 + step.loss / 1e9)
    assert model.step_seconds(0, step, wire) == pytest.approx(step.total / 1e9)
    assert model.embed_seconds(12, 3, 2e9, wire) == pytest.approx(4 + 2)
    assert [model.bits(text) for text in ("500mbit", "25gbit")] == [5e8, 2.5e10]


def test_rows_are_compared_with_the_model():
    alone = {"case": "phases", "failed": [], "parts": 1, "cores": 2, "rate": "1gbit", "nodes": 9}
    alone |= {"order": "hash", "total_seconds": [8.0], "sent_bytes": [726], "cut_share": 0.0}
    two = alone | {"parts": 2, "rate": "8mbit", "total_seconds": [5.9, 6.0], "cut_share": 0.5}
    four = two | {"parts": 4, "sent_bytes": [10**6, 2 * 10**6]}
    two["sent_bytes"] = [10**6, 2 * 10**6]
    found = model.checked([alone, two, four])
    assert [row["modelled"] for row in found] == [8, 6, 6]
    assert [row["measured"] for row in found] == [8, 6, 6]
    step = {"case": "step", "parts": 2, "order": "hash", "rate": "8mbit", "step_seconds": 2.5}
    step |= {"compute_seconds": 1.0, "sent_bytes": 2 * 10**6}
    (found,) = model.checked_training([step, step | {"rate": None}])
    assert found["modelled"] == 2
    assert "| a step | 2 | `hash` | 8mbit | 2.00 s | 2.50 s | -20 % |" in model.check_table(
        [], [step]
    )


def test_the_page_is_that_of_the_rows():
    assert model.page() == (ROOT / "docs/scaling.md").read_text(), (
        "python -m benchmarks.scaling_model --write"
    )
