import pytest

from graphcl.research import rows
from graphcl.research.studies import STUDIES, sweeps
from tests.research.studies.conftest import PLAN, run


def test_the_studies_of_the_paper_are_there():
    assert list(STUDIES) == [
        "perturbation",
        "corruption",
        "temperature",
        "epochs",
        "batch",
        "bound",
        "complexity",
    ]


@pytest.mark.parametrize("name", ["perturbation", "temperature", "batch", "epochs", "bound"])
def test_a_study_runs_resumes_and_draws(name, tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(sweeps, "EDGE_DROPS", (0.05, 0.75))
    monkeypatch.setattr(sweeps, "FEATURE_DROPS", (0.2, 0.8))
    monkeypatch.setattr(sweeps, "TEMPERATURES", (0.1, 1.0))
    monkeypatch.setattr(sweeps, "BATCHES", (16, 0))
    monkeypatch.setattr(sweeps, "MARKS", (0, 1, 200))
    path = tmp_path / f"{name}.jsonl"
    study, found = run(name, path)
    assert len(found) == 2 * {"perturbation": 4, "epochs": 3, "bound": 1}.get(name, 2)
    assert all(row["study"] == name and 0 <= row["accuracy"] <= 1 for row in found)
    before = path.read_bytes()
    assert run(name, path)[1] == rows.read(path)
    assert path.read_bytes() == before
    summary = study.summary(found)
    assert all(line["runs"] == 2 and line["failed"] == 0 for line in summary)
    written = study.report(found, PLAN).write(tmp_path)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert study.claim in (tmp_path / f"{name}.md").read_text()
    assert len((tmp_path / f"{name}.csv").read_text().splitlines()) == len(summary) + 1
    assert set(written) == {"markdown", "csv", "latex", "plot"}
