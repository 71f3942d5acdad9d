import pytest

from graphcl.research.paper.studies import epochs as epochs_study
from tests.research.paper.studies.conftest import run


def test_epochs_are_probed_on_the_way(tmp_path, tiny, monkeypatch):
    from graphcl import GraphCL, linear_probe
    from graphcl.recipes import load_recipe

    monkeypatch.setattr(epochs_study, "MARKS", (0, 2))
    _, found = run("epochs", tmp_path / "r.jsonl", seeds=(0,))
    by = {row["epochs"]: row for row in found}
    assert set(by) == {0, 2, 3}
    for epochs in (2, 3):
        recipe = load_recipe("cora").with_values(dim=8, epochs=epochs)
        z = GraphCL(recipe, seed=0, device="cpu").fit_transform(tiny["cora"])
        assert by[epochs]["accuracy"] == linear_probe(z, tiny["cora"]).accuracy


def test_the_bound_of_one_direction_is_the_tighter(tmp_path, tiny):
    study, found = run("bound", tmp_path / "r.jsonl", seeds=(0,))
    (row,) = found
    assert len(row["loss_by_epoch"]) == 3
    by = {(line["epoch"], line["bound"]): line["mean"] for line in study.summary(found)}
    log_k = row["bound_by_epoch"][0] + row["loss_by_epoch"][0]
    assert by[1, "log k − L/2"] == pytest.approx(log_k - row["loss_by_epoch"][0] / 2)
    assert by[1, "log k − L"] == row["bound_by_epoch"][0] < by[1, "log k − L/2"] < log_k
