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
        total += away * (8 + 64 * 4)
        total += away * (16 + 4 * (drawn + 1)) if drawn else 0
    step = model.step_bytes(parts, cut)
    assert step.sample == pytest.approx(total)
    assert step.loss == 2 * 3 * (2 * 512 * 128 * 4)
    assert model.step_bytes(parts, cut, hits=1).sample < 0.2 * total
    wire = 8e9  # a byte per nanosecond
    assert model.step_seconds(10, step, wire) == pytest.approx(10 + step.loss / 1e9)
    assert model.step_seconds(0, step, wire) == pytest.approx(step.total / 1e9)
    assert model.embed_seconds(4, 2e9, wire) == pytest.approx(4 + 2)
    assert [model.bits(text) for text in ("500mbit", "25gbit")] == [5e8, 2.5e10]


def rows_of(work, slower):
    """Rows of a machine that works just so."""
    found = []
    for parts, rate, sent in ((1, "1gbit", 0), (2, "8mbit", 10**6), (4, "80mbit", 3 * 10**6)):
        cut = 1 - 1 / parts
        entries = 2 * 10**6 / parts
        cpu = work.seconds(entries, cut * entries, sent)
        wall = cpu * slower * max(1, parts / 2) + 8 * sent / model.bits(rate)
        row = {"case": "phases", "failed": [], "parts": parts, "cores": 2, "rate": rate}
        row |= {"nodes": 10**5, "edges": 10**6, "order": "hash", "cut_share": cut}
        row |= {"cpu_seconds": [cpu / 2, cpu], "total_seconds": [wall], "sent_bytes": [sent, 7]}
        found.append(row)
    return found


def test_rows_are_compared_with_the_model():
    work = model.Work(1e-6, 2e-6, 3e-8)
    rows = rows_of(work, slower=1.5)
    found = model.fitted(rows)
    assert (found.entry, found.cut, found.byte) == pytest.approx((1e-6, 2e-6, 3e-8), rel=1e-6)
    for row in model.checked([*rows, {"case": "embed", "parts": 4}]):
        assert row["modelled"] == pytest.approx(row["measured"])
    assert model.fitted(rows[1:]) is None
    assert model.checked(rows[1:]) == []


def steps_of(work, slower):
    """Rows of steps on a machine that works just so."""
    found = []
    for parts, rate, sent in ((1, "1gbit", 0), (2, "8mbit", 10**6), (4, "1gbit", 3 * 10**6)):
        cpu = work.seconds(1000 / parts, sent)
        wall = max(cpu * slower * max(1, parts / 2), 8 * sent / model.bits(rate))
        wall += 8 * 1000 * (parts - 1) / model.bits(rate)
        row = {"case": "step", "failed": [], "parts": parts, "cores": 2, "rate": rate}
        row |= {"cache_bytes": 0, "memory_limit": None, "nodes": 10**6, "order": "hash"}
        row |= {"batch_nodes": 1000, "compute_seconds": cpu, "step_seconds": wall}
        found.append(row | {"sent_bytes": sent, "wire_bytes": sent + 1000 * (parts - 1)})
    return found


def test_steps_are_compared_with_the_model():
    work = model.StepWork(1e-4, 2e-8, 0.03)
    rows = steps_of(work, slower=1.5)
    found = model.fitted_steps(rows)
    expected = (1e-4, 2e-8, 0.03)
    assert (found.seed, found.byte, found.exchanges) == pytest.approx(expected, rel=1e-6)
    earlier = rows[0] | {"compute_seconds": 9.0, "step_seconds": 9.0}
    assert model.fitted_steps([earlier, *rows]) == found  # of equal measurements the last counts
    others = [rows[1] | change for change in ({"cache_bytes": 9}, {"memory_limit": 9})]
    checked = model.checked_training(rows + others)
    assert len(checked) == 3
    for row in checked:
        assert row["modelled"] == pytest.approx(row["measured"])
    assert model.fitted_steps(rows[1:]) is None
    assert model.checked_training(rows[1:]) == []
    line = "| a step | 1,000,000 | 2 | `hash` | 8mbit | 1.00 s | 1.00 s | +0 % |"
    assert line in model.check_table([], rows)


@pytest.mark.parametrize(
    ("file", "checked"),
    [("parts_on_hosts", model.checked), ("parts_training", model.checked_training)],
)
def test_the_committed_rows_are_within_a_quarter_of_the_model(file, checked):
    rows = checked(model.read(model.RESULTS / f"{file}.jsonl"))
    assert {row["parts"] for row in rows} == {1, 2, 4}
    assert len({row["rate"] for row in rows if row["parts"] > 1}) >= 2
    for row in rows:
        assert abs(row["modelled"] / row["measured"] - 1) < model.ALLOWED, row


def test_the_page_is_that_of_the_rows():
    assert model.page() == (ROOT / "docs/research/scaling.md").read_text(), (
        "python -m benchmarks.scaling_model --write"
    )
