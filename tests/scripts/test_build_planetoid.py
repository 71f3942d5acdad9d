"""The bundled files are built again; a pickle that is not of arrays is refused, and never runs."""

import pickle
import runpy
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from graphcl.errors import DatasetError
from scripts.build_planetoid import load_arrays
from tests.forging import Hostile

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("nothing_runs")


def lying_matrix():
    matrix = scipy.sparse.csr_matrix(np.eye(3))
    matrix.indices = np.array([0, 1, 10**8], dtype=np.int32)
    return pickle.dumps(matrix)


PICKLES = {
    "a call": pickle.dumps(Hostile()),
    "a call in a list": pickle.dumps([1, {"x": Hostile()}]),
    "a lambda's name": b'cbuiltins\neval\n(S\'__import__("os").mkdir("was-run")\'\ntR.',
    "room for 8 GB of memos": b"\x80\x02Kr" + b"r\x00\x00\x00\x20" + b".",
    "an array without data": (
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


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_does_not_run(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ind.cora.x"
    path.write_bytes(pickle.dumps(Hostile(), protocol=protocol))
    with pytest.raises(DatasetError, match="not a pickle of arrays"):
        load_arrays(path)
    assert not Path("was-run").exists()


def test_a_pickle_of_arrays_is_read(tmp_path):
    path = tmp_path / "arrays"
    path.write_bytes(pickle.dumps([np.arange(3)], protocol=4))
    assert load_arrays(path)[0].tolist() == [0, 1, 2]
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DatasetError):
        load_arrays(path)
    with pytest.raises(DatasetError, match="no such file"):
        load_arrays(tmp_path / "absent")


def test_the_build_script_reproduces_the_bundled_files(data_folder, tmp_path, monkeypatch):
    script = runpy.run_path(str(ROOT / "scripts/build_planetoid.py"))
    bundled = script["BUNDLED"]
    monkeypatch.setitem(script["build"].__globals__, "BUNDLED", tmp_path)
    for name in ("cora", "citeseer", "pubmed"):
        written = script["build"](name, data_folder / "planetoid")
        with np.load(written) as ours, np.load(bundled / f"{name}.npz") as theirs:
            assert ours.files == theirs.files
            assert all(np.array_equal(ours[key], theirs[key]) for key in ours.files)
