import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from graphcl.errors import GraphError
from graphcl.graphs.graph import Graph
from graphcl.tabular.build import read_tables
from graphcl.tabular.duck import Duck, interruptible
from tests.tabular.conftest import STRUCTURAL


def test_batches_that_cut_an_entry_in_two(monkeypatch):
    monkeypatch.setattr("graphcl.tabular.duck.BATCH_ROWS", 2048)
    random = np.random.default_rng(0)
    edges = random.integers(0, 40, (2, 30_000))
    weights = random.integers(1, 5, 30_000).astype(float)
    table = {"source": edges[0], "target": edges[1], "w": weights}
    pyarrow.parquet.write_table(pyarrow.table(table), "many.parquet")
    ours = read_tables("many.parquet", weight="w", **STRUCTURAL)
    theirs = Graph.from_edge_index(edges, np.ones((40, 1)), edge_weight=weights)
    assert np.array_equal(ours.indices, theirs.indices)
    assert np.array_equal(ours.edge_weight, theirs.edge_weight)


def test_no_room_for_temporary_files_is_no_bug():
    size = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, size[1]))
    try:
        with pytest.raises(GraphError, match=r"no temporary file can be written .*TMPDIR=FOLDER"):
            Duck()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, size)


ENDLESS = "SELECT sum(a.i * b.i) FROM range(10000000) a(i), range(10000000) b(i)"


def cpu_seconds(pid):
    spent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, spent)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_query_that_never_would(end):
    query = f"SELECT s AS source, s AS target FROM ({ENDLESS}) t(s)"
    words = [sys.executable, "-m", "graphcl", "check", query, "--features", "structural"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and cpu_seconds(process.pid) < 2.5:
            time.sleep(0.05)
        assert process.poll() is None
        process.send_signal(end)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert said.strip() == "graphcl: interrupted"


def test_work_in_another_thread_is_stopped_and_its_errors_are_kept(request):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    stopped = threading.Event()

    def work():
        signal.raise_signal(signal.SIGINT)  # the main thread takes it while this one works
        assert stopped.wait(10)

    with pytest.raises(KeyboardInterrupt):
        interruptible(work, stopped.set)
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 / 0, stopped.set)
    assert interruptible(lambda: 7, stopped.set) == 7


def test_too_little_memory_is_said_with_advice():
    with Duck() as duck:
        duck.run("SET memory_limit = '4MB'")
        duck.run("SET temp_directory = ''")
        with pytest.raises(GraphError, match=r"^e.csv: not enough memory.*TMPDIR=FOLDER.*ignore"):
            duck.run(
                "CREATE TABLE t AS SELECT i, i::VARCHAR FROM range(9000000) r(i)", where="e.csv"
            )
