import pytest

from graphcl.estimator import GraphCL
from graphcl.recipes import Recipe
from graphcl.research.paper.studies import criterion
from graphcl.research.tuning.objective import ClusterStability
from tests.research.paper.studies.conftest import run


def test_the_criterion_is_ranked_against_accuracy(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(criterion, "SETTINGS", 3)
    study, found = run("criterion", tmp_path / "r.jsonl", seeds=(0,))
    assert [row["trial"] for row in found] == [0, 1, 2]
    assert len({row["settings_hash"] for row in found}) == 3
    first = found[0]
    model = GraphCL(Recipe(**first["settings"]), seed=0, device="cpu")
    model.fit(ClusterStability.of(tiny["cora"], seed=0).data)
    expected = ClusterStability.of(tiny["cora"], seed=0)(model.transform)
    assert first["stability"] == pytest.approx(expected)
    assert all(0 < row["val_accuracy"] <= 1 for row in found)
    by_hand = [
        {"graph": "cora", "seed": 0, "stability": a, "accuracy": b, "val_accuracy": c}
        for a, b, c in ((0.7, 0.5, 0.9), (0.8, 0.6, 0.7), (0.9, 0.7, 0.8))
    ]
    (line,) = study.summary(by_hand)
    assert line["spearman"] == pytest.approx(1)
    assert line["spearman_validation"] == pytest.approx(-0.5)
    assert (line["chosen"], line["median"], line["best"]) == pytest.approx((70, 60, 70))
    assert study.draw(found) is not None
