import pickle
import runpy
from pathlib import Path

import numpy as np
import pytest

from graphcl.errors import DatasetError
from scripts.build_planetoid import load_arrays


def test_the_build_script_reproduces_the_bundled_files(data_folder, tmp_path, monkeypatch):
    script = runpy.run_path("scripts/build_planetoid.py")
    bundled = script["BUNDLED"]
    monkeypatch.setitem(script["build"].__globals__, "BUNDLED", tmp_path)
    for name in ("cora", "citeseer", "pubmed"):
        written = script["build"](name, data_folder / "planetoid")
        with np.load(written) as ours, np.load(bundled / f"{name}.npz") as theirs:
            assert ours.files == theirs.files
            assert all(np.array_equal(ours[key], theirs[key]) for key in ours.files)


class Hostile:
    def __reduce__(self):
        return (Path.touch, (Path("was-run"),))


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
