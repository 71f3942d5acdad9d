"""Rows of results: files with one JSON object per line, and the jobs that fill them.

A finished row is on the disk before the next run starts. If a process is killed while it writes, it
leaves an incomplete last line. `read` skips it, and `append` starts the next row on a new line.

A job trains once, in this process, and yields one or more scorings. Worker processes compute the
scores while the next job trains, because a probe takes longer than a training on a GPU. Runs that
the file has already are skipped.
"""

import json
import math
import multiprocessing
import os
import platform
import signal
import statistics
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import torch
from threadpoolctl import threadpool_limits

from graphcl.devices import device_name
from graphcl.errors import GraphCLError, RunError
from graphcl.version import versions

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
Row: TypeAlias = dict[str, Json]
_Key = TypeVar("_Key", bound=Hashable)


def number(row: Mapping[str, Json], column: str) -> float:
    """Returns a column that holds a number; anything else, or nothing, is a `RunError`."""
    return cast("float", _value(row, column, "number", int | float))


def numbers(row: Mapping[str, Json], column: str) -> list[float]:
    """Returns a column that holds a list of numbers; anything else, or nothing, is a `RunError`."""
    values = cast("list[Json]", _value(row, column, "list", list))
    return [number({column: value}, column) for value in values]


def text(row: Mapping[str, Json], column: str) -> str:
    """Returns a column that holds text; anything else, or nothing, is a `RunError`."""
    return cast("str", _value(row, column, "text", str))


def _value(row: Mapping[str, Json], column: str, what: str, kind: Any) -> Any:
    value = row.get(column)
    if not isinstance(value, kind):
        raise RunError(f"a row of results has no {what} in {column!r}: {value!r}")
    return value


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Returns the mean, and the sample's deviation (n − 1); None where there are too few values."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


def append(path: Path, row: Mapping[str, object]) -> None:
    """Appends one row and waits until the disk has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the incomplete line of a killed process
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Row]:
    """Returns the rows of a file; none if the file does not exist.

    Raises:
        RunError: a line is not a row, and not the incomplete line of a killed process.
    """
    if not path.exists():
        return []
    # Not splitlines(): it would also split at separators that a JSON string may contain.
    lines = path.read_bytes().split(b"\n")
    rows: list[Row] = []
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            # The incomplete line of a killed process; a later process may have appended rows to it.
            if line.startswith(b"{") and not line.rstrip().endswith(b"}"):
                continue
            raise RunError(f"{path}: line {place} is not a row of results") from None
        if not isinstance(row, dict):
            raise RunError(f"{path}: line {place} is not a row of results")
        rows.append(row)
    return rows


def latest(rows: Iterable[Row], key: Callable[[Row], _Key]) -> dict[_Key, Row]:
    """Returns the last row of each key, so that a repeated run counts once."""
    return {key(row): row for row in rows}


def provenance(device: torch.device) -> Row:
    """Returns the device, versions and commit (from ``GRAPHCL_COMMIT``) of this process."""
    return {
        "commit": os.environ.get("GRAPHCL_COMMIT") or None,
        "device": device_name(device),
        "machine": platform.machine(),
        "versions": versions(),
    }


Key = tuple[object, ...]


@dataclass(frozen=True)
class Scoring:
    """Rows without their scores, and the function that computes the scores.

    Attributes:
        rows: the columns known so far; each row is one that the job lists in `about`.
        score: returns the other columns of each row, in any process; None if there are none.
    """

    rows: tuple[Row, ...]
    score: Callable[[], Sequence[Row]] | None = None


@dataclass(frozen=True)
class Job:
    """One training and what is measured on it.

    Attributes:
        label: its name in progress reports.
        about: for each row that it yields, the columns that identify the row.
        run: trains and yields the rows; after an error, the rows not yet yielded have failed.
    """

    label: str
    about: tuple[Row, ...]
    run: Callable[[], Iterable[Scoring]]


@dataclass(frozen=True)
class Progress:
    """The progress of `execute`.

    Attributes:
        done: jobs finished by this call.
        total: jobs that this call has to run.
        label: the last job.
        elapsed: seconds since the start.
        remaining: estimated seconds until the end.
        failed: rows that failed.
    """

    done: int
    total: int
    label: str
    elapsed: float
    remaining: float
    failed: int


def key_of(row: Row, columns: Sequence[str]) -> Key:
    """Returns a row's values of `columns`, which identify it."""
    return tuple(row.get(column) for column in columns)


def execute(
    jobs: Sequence[Job],
    path: Path,
    *,
    columns: Sequence[str],
    device: torch.device,
    workers: int = 1,
    budget: float = math.inf,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> list[Row]:
    """Runs the jobs whose rows are not in `path` yet and returns the rows of all jobs.

    Rows are appended as they finish. After an interrupt, a later call continues where this one
    stopped. A run that fails leaves a row with the reason under ``failed``; a later call runs it
    again.

    Args:
        jobs: all jobs, including finished ones.
        path: the file of rows.
        columns: the columns that identify a row.
        device: where the jobs train; it is noted in the rows.
        workers: processes that score; 1 scores in this process.
        budget: no job starts after this many seconds; a later call runs the rest.
        on_progress: called after each job.
    """
    found = {key_of(row, columns): row for row in read(path) if "failed" not in row}
    todo = [job for job in jobs if any(key_of(one, columns) not in found for one in job.about)]
    about, failed, began, elapsed = provenance(device), 0, time.perf_counter(), 0.0
    pending: deque[tuple[tuple[Row, ...], Future[Sequence[Row]]]] = deque()

    def keep(new: Iterable[Row]) -> None:
        nonlocal failed
        for one in new:
            row, key = one | about, key_of(one, columns)
            if "failed" in found.get(key, {"failed": ""}):  # else the job ran for its other rows
                failed += "failed" in row
                # In this order: after an interrupt between the two, it is not appended twice.
                found[key] = row
                append(path, row)

    def start(job: Job, pool: Executor) -> None:
        """Runs a job's training and submits its scorings to the pool."""
        missing = {key_of(one, columns): one for one in job.about}
        why = "the run ended without this row"
        try:
            for scoring in job.run():
                for row in scoring.rows:
                    del missing[key_of(row, columns)]  # KeyError: the job did not list it
                if scoring.score is None:
                    keep(scoring.rows)
                else:
                    pending.append((scoring.rows, pool.submit(scoring.score)))
        except Exception as error:
            why = reason(error)
        keep(one | {"failed": why} for one in missing.values())

    def collect(at_most: int) -> None:
        """Keeps finished rows and waits until at most `at_most` scorings are pending."""
        while pending and (len(pending) > at_most or pending[0][1].done()):
            known, future = pending.popleft()
            try:
                keep([row | scores for row, scores in zip(known, future.result(), strict=True)])
            except Exception as error:
                keep(row | {"failed": reason(error)} for row in known)

    with scoring_pool(workers) as pool:
        try:
            for done, job in enumerate(todo, 1):
                if elapsed > budget:
                    break
                start(job, pool)
                collect(2 * workers)  # bounds the embeddings held in memory
                elapsed = time.perf_counter() - began
                remaining = elapsed / done * (len(todo) - done)
                on_progress(Progress(done, len(todo), job.label, elapsed, remaining, failed))
        except KeyboardInterrupt:
            collect(2 * workers + 1)  # what is finished, without waiting
            raise
        collect(0)
    wanted = [key_of(one, columns) for job in jobs for one in job.about]
    return [found[key] for key in wanted if key in found]


def reason(error: Exception) -> str:
    """Returns an error as one line, with its type unless it is one of GraphCL's own errors."""
    text = " ".join(str(error).split())
    return text if isinstance(error, GraphCLError) else f"{type(error).__name__}: {text}"


class _InProcess(Executor):
    """Runs each submitted call immediately, in this process."""

    def submit(self, function: Any, /, *args: Any, **keywords: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            with threadpool_limits(1):  # a probe is too small to gain from threads
                done.set_result(function(*args, **keywords))
        except Exception as error:
            done.set_exception(error)
        return done


@contextmanager
def scoring_pool(workers: int) -> Iterator[Executor]:
    """Yields the executor that scores: this process, or several worker processes."""
    if workers == 1:
        yield _InProcess()
        return
    # Spawned, not forked: a forked child cannot use CUDA.
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawn, initializer=_initialise_worker)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _initialise_worker() -> None:
    """Limits a worker to one thread and leaves Ctrl-C to the parent process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threadpool_limits(1)
