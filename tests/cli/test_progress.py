import sys

from graphcl.cli.progress import probe_progress, run_progress
from graphcl.research.rows import Progress

RUNS = [
    Progress(1, 4, "cora 0", 2.0, 6.0, 0),
    Progress(2, 4, "cora 1", 4.0, 4.0, 1),
    Progress(3, 4, "cora 2", 8.0, 2.7, 1),
    Progress(4, 4, "cora 3", 9.0, 0.0, 1),
]


def test_runs_are_lines_at_the_ends_and_every_few_seconds(capsys):
    with run_progress("table2") as show:
        for run in RUNS:
            show(run)
    assert capsys.readouterr().err.splitlines() == [
        "table2: run 1/4  cora 0  30.0 runs/min  ETA 6 s",
        "table2: run 3/4  cora 2  1 failed  22.5 runs/min  ETA 3 s",
        "table2: run 4/4  cora 3  1 failed  26.7 runs/min  ETA 0 s",
    ]


def test_runs_on_a_terminal_are_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with run_progress("table2") as show:
        show(RUNS[1])
    text = capsys.readouterr().err
    assert "run 2/4" not in text
    assert "cora 1  1 failed  30.0 runs/min  ETA 4 s" in text


def test_the_probes_progress_is_a_line_now_and_then(capsys, monkeypatch):
    clock = iter([100.0, 102.0, 106.0, 107.0] * 2)
    monkeypatch.setattr("graphcl.cli.progress.time.perf_counter", lambda: next(clock))
    with probe_progress(100) as show:
        for step in (1, 21, 61, 71) * 2:
            show(step)
    line = "probe: step 61/100  10.00 steps/s  ETA 4 s\n"
    assert capsys.readouterr().err == 2 * line


def test_the_probes_progress_on_a_terminal_is_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with probe_progress(3) as show:
        for step in (1, 2, 3):
            show(step)
    assert "step" not in capsys.readouterr().err
