import sys

from graphcl.cli._shared.probing import probe_progress


def test_progress_is_a_line_now_and_then(capsys, monkeypatch):
    clock = iter([100.0, 102.0, 106.0, 107.0] * 2)
    monkeypatch.setattr("graphcl.cli._shared.progress.time.perf_counter", lambda: next(clock))
    with probe_progress(100) as show:
        for step in (1, 21, 61, 71) * 2:
            show(step)
    line = "probe: step 61/100  10.00 steps/s  ETA 4 s\n"
    assert capsys.readouterr().err == 2 * line


def test_progress_on_a_terminal_is_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with probe_progress(3) as show:
        for step in (1, 2, 3):
            show(step)
    assert "step" not in capsys.readouterr().err
