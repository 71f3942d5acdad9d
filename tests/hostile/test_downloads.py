"""Datasets and downloads from a stranger."""

import hashlib
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from graphcl.datasets.download import fetch_zip
from graphcl.errors import DatasetError
from scripts.build_planetoid import load_arrays
from tests.hostile.forging import Hostile, described, npy, refused, zipped
from tests.hostile.test_graph_files import NPZ
from tests.hostile.test_lying_runs import RUNS
from tests.hostile.test_lying_stores import STORES


def lying_matrix():
    matrix = scipy.sparse.csr_matrix(np.eye(3))
    matrix.indices = np.array([0, 1, 10**8], dtype=np.int32)
    return pickle.dumps(matrix)


PICKLES = {
    "a call": pickle.dumps(Hostile()),
    "a call in a list": pickle.dumps([1, {"x": Hostile()}]),
    "a lambda's name": b'cbuiltins\neval\n(S\'__import__("os").mkdir("was-run")\'\ntR.',
    "room for 8 GB of memos": b"\x80\x02Kr" + b"r\x00\x00\x00\x20" + b".",
    "an array out of nothing": (
        b"\x80\x02cnumpy._core.multiarray\n_reconstruct\n"
        b"(cnumpy\nndarray\n(\x8a\x06\x00\x00\x00\x00\x00\x01tU\x01ftR."
    ),
    "a terabyte of text": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.",
    "a matrix that points outside": lying_matrix(),
    "cut": pickle.dumps(np.ones(99))[:-40],
    "nothing": b"",
}


@pytest.mark.parametrize("case", PICKLES)
def test_pickles(case, tmp_path, bounded):
    (tmp_path / "ind.cora.x").write_bytes(PICKLES[case])
    with pytest.raises(DatasetError, match="not a pickle of arrays"):
        load_arrays(tmp_path / "ind.cora.x")


@pytest.mark.parametrize("dataset", ["ppi/ppi.npz", "reddit/reddit_data.npz"])
@pytest.mark.parametrize(
    "case", ["bomb", "pickled array", "path upwards", "absurd shape", "a pipe"]
)
def test_datasets(case, dataset, tmp_path, capsys, monkeypatch, bounded):
    make, message = NPZ[case]
    (tmp_path / dataset).parent.mkdir()
    make(tmp_path / dataset)
    if case in ("pickled array", "absurd shape"):  # under the names that are looked for
        name = "features" if "ppi" in dataset else "feature"
        array = np.array([Hostile()], dtype=object)
        if case == "pickled array":
            np.savez(tmp_path / dataset, **{name: array})
        else:
            zipped(tmp_path / dataset, **{name: npy(header=described("<f4", (10**12, 64)))})
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path))
    refused(["train", dataset.split("/")[0], "--out", "run"], capsys, message)


def archive_of(path, **files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/").replace("_DOT_", "."), data)
    return path.as_uri()


def digest(uri):

    return hashlib.sha256(Path(uri.removeprefix("file://")).read_bytes()).hexdigest()


def test_a_download_is_compared_before_it_is_unpacked(tmp_path):
    uri = archive_of(tmp_path / "a.zip", good=b"data")
    fetch_zip(uri, tmp_path / "raw", sha256=digest(uri), names=["good"], limit=2**20)
    assert (tmp_path / "raw" / "good").read_bytes() == b"data"
    with pytest.raises(DatasetError, match="expected 0000; not unpacked"):
        fetch_zip(uri, tmp_path / "other", sha256="0000", names=["good"], limit=2**20)
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"good": b"1", "_DOT__DOT___evil": b"2"}, "names are plain"),
        ({"__etc__evil": b"2"}, "names are plain"),
        ({"other": b"1"}, "holds no good"),
        ({"good": bytes(2**21)}, "more than 1048576 bytes"),
    ],
)
def test_archives_that_are_downloaded(files, message, tmp_path):
    uri = archive_of(tmp_path / "a.zip", **files)
    with pytest.raises(DatasetError, match=message):
        fetch_zip(uri, tmp_path / "raw", sha256=digest(uri), names=["good"], limit=2**20)
    assert list((tmp_path / "raw").iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_the_corpus_is_large():
    assert sum(map(len, (NPZ, STORES, RUNS, PICKLES))) >= 40
