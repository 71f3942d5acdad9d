"""Embeddings in files and indexes: what is read back is what was written, batch by batch."""

import json
import sys
import weakref

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from graphcl.errors import MissingExtraError, RunError
from graphcl.exporting import vectors
from graphcl.exporting.vectors import SINKS, batches, check_vectors, vectors_of, write_vectors
from graphcl.store.columns import Names

ROWS, DIM = 1000, 6


@pytest.fixture
def z():
    return np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32)


def read_back(path, kind):
    if kind == "arrow":
        return pyarrow.ipc.open_file(path).read_all()
    if kind == "parquet":
        return pyarrow.parquet.read_table(sorted(path.glob("part-*.parquet")))
    lancedb = pytest.importorskip("lancedb")
    return lancedb.connect(path).open_table("embeddings").to_arrow()


@pytest.mark.parametrize("kind", ["arrow", "parquet", "lancedb"])
@pytest.mark.parametrize("ids", ["texts", "names", "numbers", "mixed", "none"])
def test_tables_hold_ids_and_rows(tmp_path, monkeypatch, z, kind, ids):
    monkeypatch.setattr(vectors, "SHARD_ROWS", 300)
    given = {
        "texts": np.array([f"n{row}" for row in range(2000)]),
        "names": Names.of([f"nœud {row}" for row in range(2000)]),
        "numbers": np.arange(2000) * 3,
        "mixed": np.array([row if row % 2 else f"n{row}" for row in range(2000)], dtype=object),
        "none": None,
    }[ids]
    path = tmp_path / ("out.arrow" if kind == "arrow" else "out")
    check_vectors(path, kind, overwrite=False)
    assert write_vectors(path, kind, batches(z, given, first=500, rows=128), dim=DIM) == ROWS
    table = read_back(path, kind).sort_by("id") if ids == "none" else read_back(path, kind)
    found = np.concatenate([vectors_of(batch) for batch in table.to_batches()])
    np.testing.assert_array_equal(found, z)
    names = range(500, 1500) if given is None else given[500:1500].tolist()
    expected = [str(name) for name in names] if ids == "mixed" else list(names)
    assert table.column("id").to_pylist() == expected
    if kind == "parquet":
        assert len(list(path.glob("part-*.parquet"))) == 3
    if kind != "arrow":
        about = json.loads((path / "vectors.json").read_text())
        assert about == {"kind": kind, "rows": ROWS, "dim": DIM}


def test_an_index_of_faiss_finds_the_nearest(tmp_path, z):
    faiss = pytest.importorskip("faiss")
    write_vectors(tmp_path / "out", "faiss", batches(z, None, rows=300), dim=DIM)
    index = faiss.read_index(str(tmp_path / "out/index.faiss"))
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    scores, found = index.search(unit[:50], 5)
    expected = np.argsort(-(unit[:50] @ unit.T), axis=1)[:, :5]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(scores[:, 0], 1, atol=1e-5)
    ids = pyarrow.parquet.read_table(tmp_path / "out/ids.parquet").column("id")
    assert ids.to_pylist() == list(range(ROWS))


def test_an_index_of_usearch_finds_the_nearest(tmp_path, z):
    index_of = pytest.importorskip("usearch.index").Index
    names = np.array([f"n{row}" for row in range(ROWS)])
    write_vectors(tmp_path / "out", "usearch", batches(z, names, rows=300), dim=DIM)
    index = index_of.restore(str(tmp_path / "out/index.usearch"))
    assert len(index) == ROWS
    found = [int(index.search(row / np.linalg.norm(row), 1).keys[0]) for row in z[:50]]
    assert np.mean(np.array(found) == np.arange(50)) > 0.95
    ids = pyarrow.parquet.read_table(tmp_path / "out/ids.parquet").column("id").to_pylist()
    assert ids == names.tolist()


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_few_batches_are_held_at_a_time(tmp_path, monkeypatch, z, kind):
    monkeypatch.setattr(vectors, "SHARD_ROWS", 100)
    seen, most = [], [0]

    def watched():
        for batch in batches(z, None, rows=10):
            seen.append(weakref.ref(batch))
            most[0] = max(most[0], sum(one() is not None for one in seen))
            yield batch

    path = tmp_path / ("out.arrow" if kind == "arrow" else "out")
    assert write_vectors(path, kind, watched(), dim=DIM) == ROWS
    assert most[0] <= 3


def test_nothing_is_left_of_a_stream_that_breaks(tmp_path, z):
    def broken():
        yield from batches(z[:10], None)
        raise OSError("the disk is full")

    for kind in SINKS:
        path = tmp_path / ("out.arrow" if kind == "arrow" else "out")
        with pytest.raises(Exception, match="the disk is full"):
            write_vectors(path, kind, broken(), dim=DIM)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept(tmp_path):
    with pytest.raises(RunError, match="to must be parquet, arrow"):
        check_vectors(tmp_path / "out", "csv", overwrite=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    with pytest.raises(RunError):
        check_vectors(tmp_path / "mine", "parquet", overwrite=True)
    with pytest.raises(RunError, match="arrow"):
        check_vectors(tmp_path / "out.npy", "arrow", overwrite=False)


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [
        ("faiss", "faiss", "vectors"),
        ("lancedb", "lancedb", "vectors"),
        ("usearch", "usearch.index", "neighbors"),
    ],
)
def test_the_extra_is_named_where_it_is_missing(tmp_path, monkeypatch, z, kind, package, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"graphcl\[{extra}\]"):
        write_vectors(tmp_path / "out", kind, batches(z, None), dim=DIM)
    assert list(tmp_path.iterdir()) == []
