import pytest

from graphcl.research.studies.study import averages


def test_averages_by_hand():
    found = [
        {"graph": "cora", "x": x, "accuracy": score, "seed": seed}
        for x, scores in ((2, (0.5, 0.7)), (10, (0.9,)))
        for seed, score in enumerate(scores)
    ]
    found.append({"graph": "cora", "x": 2, "seed": 9, "failed": "nan"})
    first, second = averages(found, ("graph", "x"))
    assert (first["x"], second["x"]) == (2, 10)
    assert first["mean"] == pytest.approx(60)
    assert first["std"] == pytest.approx(14.142136)
    assert (first["runs"], first["failed"]) == (2, 1)
    assert (second["std"], second["runs"]) == (None, 1)
