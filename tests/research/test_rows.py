import json
import os
from functools import partial

import pytest
import torch

from graphcl.errors import RunError, TrainingError
from graphcl.research import rows
from graphcl.research.rows import Job, Scoring, execute, reason


def test_rows_are_read_as_written(tmp_path):
    path = tmp_path / "below/rows.jsonl"
    assert rows.read(path) == []
    written = [{"seed": 0, "text": "a\u2028b"}, {"seed": 1, "score": 0.5}]
    for row in written:
        rows.append(path, row)
    assert rows.read(path) == written
    assert path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("torn", [b'{"seed": 2, "acc', b'{"seed"', b"{"])
def test_a_torn_last_line_is_skipped_and_the_next_row_is_whole(tmp_path, torn):
    path = tmp_path / "rows.jsonl"
    rows.append(path, {"seed": 1})
    with path.open("ab") as file:
        file.write(torn)
    assert rows.read(path) == [{"seed": 1}]
    rows.append(path, {"seed": 2})
    assert rows.read(path) == [{"seed": 1}, {"seed": 2}]


@pytest.mark.parametrize("line", [b"not json\n", b"[1, 2]\n", b'{"a": 1} {"b": 2}\n'])
def test_a_broken_line_is_refused(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(json.dumps({"seed": 1}).encode() + b"\n" + line)
    with pytest.raises(RunError, match="line 2"):
        rows.read(path)


def test_nan_is_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        rows.append(tmp_path / "rows.jsonl", {"loss": float("nan")})
    assert rows.read(tmp_path / "rows.jsonl") == []


def test_the_last_row_of_a_key_counts():
    found = rows.latest([{"k": 1, "v": 1}, {"k": 2, "v": 2}, {"k": 1, "v": 3}], lambda r: r["k"])
    assert [row["v"] for row in found.values()] == [3, 2]


def test_provenance_says_where_a_row_comes_from(monkeypatch):
    monkeypatch.setenv("GRAPHCL_COMMIT", "abc")
    about = rows.provenance(torch.device("cpu"))
    assert (about["commit"], about["device"]) == ("abc", "cpu")
    assert {"graphcl", "torch", "numpy"} <= about["versions"].keys()


CPU = torch.device("cpu")
COLUMNS = ("method", "seed")


def doubled(seed):
    return [{"score": 2 * seed, "process": os.getpid()}]


def broken(seed):
    raise ValueError("no\nscore")


def job(seed, log, function=doubled):
    about = {"method": "m", "seed": seed}

    def run():
        log.append(seed)
        yield Scoring((about,), partial(function, seed))

    return Job("m", (about,), run)


def start(jobs, path, **options):
    return execute(jobs, path, columns=COLUMNS, device=CPU, **options)


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_are_kept_and_not_run_again(tmp_path, workers):
    path, log, told = tmp_path / "rows.jsonl", [], []
    first = start([job(seed, log) for seed in (0, 1)], path, workers=workers)
    assert [row["score"] for row in first] == [0, 2]
    assert all((row["process"] == os.getpid()) == (workers == 1) for row in first)
    more = start([job(seed, log) for seed in (0, 1, 2)], path, on_progress=told.append)
    assert [row["score"] for row in more] == [0, 2, 4]
    assert log == [0, 1, 2]
    assert [(one.done, one.total) for one in told] == [(1, 1)]
    assert len(rows.read(path)) == 3
    assert rows.read(path)[0]["device"] == "cpu"


def test_a_finished_row_is_on_the_disk_before_the_next_run_starts(tmp_path):
    path, found, about = tmp_path / "rows.jsonl", [], {"method": "m", "seed": 1}

    def look():
        found.extend(row["seed"] for row in rows.read(path))
        yield Scoring((about,))

    start([job(0, []), Job("m", (about,), look)], path)
    assert found == [0]


def test_a_failed_run_is_a_row_with_its_reason_and_is_tried_again(tmp_path):
    path, log = tmp_path / "rows.jsonl", []

    def explode():
        raise TrainingError("the loss became nan")
        yield

    jobs = [Job("m", ({"method": "m", "seed": 0},), explode), job(1, log, broken), job(2, log)]
    found = start(jobs, path)
    assert [row.get("failed") for row in found] == [
        "the loss became nan",
        "ValueError: no score",
        None,
    ]
    again = start([job(seed, log) for seed in range(3)], path)
    assert [row["score"] for row in again] == [0, 2, 4]
    assert log == [1, 2, 0, 1]
    assert len(rows.read(path)) == 5  # failures stay in the file


def test_an_interrupt_keeps_what_is_finished(tmp_path):
    path, log = tmp_path / "rows.jsonl", []

    def interrupted():
        raise KeyboardInterrupt
        yield

    jobs = [job(0, log), Job("m", ({"method": "m", "seed": 1},), interrupted), job(2, log)]
    with pytest.raises(KeyboardInterrupt):
        start(jobs, path)
    assert [row["seed"] for row in rows.read(path)] == [0]
    start([job(seed, log) for seed in range(3)], path)
    assert log == [0, 1, 2]


def test_a_torn_row_is_run_again(tmp_path):
    path, log = tmp_path / "rows.jsonl", []
    start([job(0, log), job(1, log)], path)
    path.write_bytes(path.read_bytes()[:-30])
    assert [row["score"] for row in start([job(0, log), job(1, log)], path)] == [0, 2]
    assert log == [0, 1, 1]


def test_a_job_of_several_rows_adds_the_missing_ones_alone(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows.append(path, {"method": "m", "seed": 0, "score": 7})
    about = tuple({"method": "m", "seed": seed} for seed in range(2))

    def run():
        yield Scoring(tuple(one | {"score": one["seed"]} for one in about))

    found = start([Job("m", about, run)], path)
    assert [row["score"] for row in found] == [7, 1]
    assert len(rows.read(path)) == 2


def test_a_row_that_does_not_come_is_a_failure(tmp_path):
    about = tuple({"method": "m", "seed": seed} for seed in range(2))
    jobs = [Job("m", about, lambda: iter([Scoring((about[0] | {"score": 1},))]))]
    found = start(jobs, tmp_path / "rows.jsonl")
    assert [row.get("failed") for row in found] == [None, "the run ended without this row"]


def test_the_remaining_time_is_estimated(tmp_path, monkeypatch):
    clock = iter([0.0, 1.0, 11.0, 12.0])
    monkeypatch.setattr("graphcl.research.rows.time.perf_counter", lambda: next(clock))
    told = []
    start([job(seed, []) for seed in range(3)], tmp_path / "rows.jsonl", on_progress=told.append)
    assert [(one.elapsed, one.remaining) for one in told] == [(1.0, 2.0), (11.0, 5.5), (12.0, 0.0)]


def test_no_job_starts_after_the_budget(tmp_path, monkeypatch):
    clock = iter([0.0, 1.0, 11.0, 12.0])
    monkeypatch.setattr("graphcl.research.rows.time.perf_counter", lambda: next(clock))
    path, log = tmp_path / "rows.jsonl", []
    found = start([job(seed, log) for seed in range(4)], path, budget=10.0)
    assert [row["seed"] for row in found] == log == [0, 1]
    monkeypatch.undo()
    start([job(seed, log) for seed in range(4)], path)
    assert log == [0, 1, 2, 3]


def test_reasons_are_one_line():
    assert reason(TrainingError("a\n b")) == "a b"
    assert reason(KeyError("x")) == "KeyError: 'x'"
