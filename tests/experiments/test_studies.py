import pytest
import torch

from graphcl.estimator import GraphCL
from graphcl.paper.artefacts import Artefacts, study_csv, study_markdown
from graphcl.paper.studies import STUDIES, complexity, criterion, sweeps
from graphcl.paper.studies import epochs as course
from graphcl.paper.studies.study import Plan, averages
from graphcl.recipes import Recipe
from graphcl.trials import rows
from graphcl.trials.runner import execute
from graphcl.tuning.objective import ClusterStability

CPU = torch.device("cpu")
QUICK = {"epochs": "3", "dim": "8"}


def run(name, path, seeds=(0, 1), datasets=("cora",)):
    study = STUDIES[name]
    plan = Plan(datasets=datasets, seeds=seeds, device=CPU, settings=dict(QUICK))
    found = execute(study.jobs(plan), path, columns=study.columns, device=CPU)
    assert [row["failed"] for row in found if "failed" in row] == []
    return study, found


def test_the_studies_of_the_paper_are_there():
    assert list(STUDIES) == [
        "perturbation",
        "corruption",
        "temperature",
        "epochs",
        "batch",
        "bound",
        "complexity",
        "criterion",
    ]


def test_the_grid_covers_the_papers_ranges():
    assert (min(sweeps.EDGE_DROPS), max(sweeps.EDGE_DROPS)) == (0.05, 0.75)
    assert (min(sweeps.FEATURE_DROPS), max(sweeps.FEATURE_DROPS)) == (0.2, 0.8)
    assert {0.1, 0.5, 0.8, 1.0} <= set(sweeps.TEMPERATURES)
    assert {20, 50, 100, 150, 200} <= set(course.MARKS)


@pytest.mark.parametrize("name", ["perturbation", "temperature", "batch", "epochs", "bound"])
def test_a_study_runs_resumes_and_draws(name, tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(sweeps, "EDGE_DROPS", (0.05, 0.75))
    monkeypatch.setattr(sweeps, "FEATURE_DROPS", (0.2, 0.8))
    monkeypatch.setattr(sweeps, "TEMPERATURES", (0.1, 1.0))
    monkeypatch.setattr(sweeps, "BATCHES", (16, 0))
    monkeypatch.setattr(course, "MARKS", (0, 1, 200))
    path = tmp_path / f"{name}.jsonl"
    study, found = run(name, path)
    assert len(found) == 2 * {"perturbation": 4, "epochs": 3, "bound": 1}.get(name, 2)
    assert all(row["study"] == name and 0 <= row["accuracy"] <= 1 for row in found)
    before = path.read_bytes()
    assert run(name, path)[1] == rows.read(path)
    assert path.read_bytes() == before
    summary = study.summary(found)
    assert all(line["runs"] == 2 and line["failed"] == 0 for line in summary)
    written = Artefacts(tmp_path, name).write(
        markdown=study_markdown(study, found, picture=f"{name}.png"),
        csv=study_csv(study, found),
        draw=lambda: study.draw(found),
    )
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert study.claim in (tmp_path / f"{name}.md").read_text()
    assert len((tmp_path / f"{name}.csv").read_text().splitlines()) == len(summary) + 1
    assert set(written) == {"markdown", "csv", "plot"}


def test_epochs_are_probed_on_the_way(tmp_path, tiny, monkeypatch):
    from graphcl import GraphCL, linear_probe
    from graphcl.recipes import load_recipe

    monkeypatch.setattr(course, "MARKS", (0, 2))
    _, found = run("epochs", tmp_path / "r.jsonl", seeds=(0,))
    by = {row["epochs"]: row for row in found}
    assert set(by) == {0, 2, 3}
    for epochs in (2, 3):
        recipe = load_recipe("cora").with_values(dim=8, epochs=epochs)
        z = GraphCL(recipe, seed=0, device="cpu").fit_transform(tiny["cora"])
        assert by[epochs]["accuracy"] == linear_probe(z, tiny["cora"]).accuracy


def test_every_batch_size_gets_as_many_updates(tiny, monkeypatch):
    monkeypatch.setattr(sweeps, "BATCHES", (16, 30, 1000, 0))
    plan = Plan(datasets=("cora",), seeds=(0,), device=CPU, settings={"epochs": 20, "dim": 8})
    about = [one for job in STUDIES["batch"].jobs(plan) for one in job.about]
    # 60 nodes: 4 batches of 16, 2 of 30, 1 of all; 1,000 nodes are more than there are.
    assert [(one["batch_nodes"], one["updates"]) for one in about] == [(16, 20), (30, 20), (60, 20)]


def test_the_bound_of_one_direction_is_the_tighter(tmp_path, tiny):
    study, found = run("bound", tmp_path / "r.jsonl", seeds=(0,))
    (row,) = found
    assert len(row["loss_by_epoch"]) == 3
    by = {(line["epoch"], line["bound"]): line["mean"] for line in study.summary(found)}
    log_k = row["bound_by_epoch"][0] + row["loss_by_epoch"][0]
    assert by[1, "log k − L/2"] == pytest.approx(log_k - row["loss_by_epoch"][0] / 2)
    assert by[1, "log k − L"] == row["bound_by_epoch"][0] < by[1, "log k − L/2"] < log_k


def test_complexity_times_both_ways_to_train(tmp_path, monkeypatch):
    monkeypatch.setitem(complexity.SIZES, "cpu", (64, 128))
    study, found = run("complexity", tmp_path / "r.jsonl", seeds=(0,), datasets=())
    assert {(row["mode"], row["nodes"]) for row in found} == {
        (mode, nodes) for mode in ("sampled", "full") for nodes in (64, 128)
    }
    assert all(row["seconds"] > 0 for row in found)
    assert study.draw(found) is not None


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


def test_the_exponent_is_a_slope():
    lines = [{"nodes": n, "mean": 3e-4 * n**2} for n in (10, 100, 1000)]
    assert complexity.exponent(lines) == pytest.approx(2)
    assert complexity.exponent([{"nodes": 1, "mean": 5.0}, *lines]) == pytest.approx(2)
    assert complexity.exponent(lines[:1]) is None


def test_devices_are_not_averaged_with_each_other():
    found = [
        {
            "graph": "synthetic",
            "seed": 0,
            "mode": "full",
            "device": device,
            "nodes": n,
            "seconds": s,
        }
        for device, rate in (("cpu", 1.0), ("GPU", 0.01))
        for n, s in ((10, rate * 10), (20, rate * 20))
    ]
    study = STUDIES["complexity"]
    lines = study.summary(found)
    assert [line["mean"] for line in lines] == [0.1, 0.2, 10, 20]
    assert all(line["exponent"] == pytest.approx(1) for line in lines)
    assert len(study.draw(found).axes[0].get_legend_handles_labels()[0]) == 2


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
