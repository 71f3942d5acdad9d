import numpy as np
import pytest

from graphcl.datasets import CATALOGUE, load_dataset
from graphcl.errors import DatasetError
from tests.forging import Hostile, described, npy, refused, zipped
from tests.graphs.test_graph_file import NPZ

pytestmark = pytest.mark.usefixtures("nothing_runs")


def test_unknown_and_absent_datasets():
    with pytest.raises(DatasetError, match=r"known: cora, .*did you mean 'citeseer'"):
        load_dataset("citeser")
    with pytest.raises(DatasetError, match="unknown dataset None; known: cora, "):
        load_dataset(None)
    with pytest.raises(DatasetError):
        load_dataset("reddit")


def test_presence_follows_graphcl_data(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHCL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert not CATALOGUE["ppi"].present
    (tmp_path / "ppi").mkdir()
    (tmp_path / "ppi/ppi.npz").touch()
    assert CATALOGUE["ppi"].present
    assert CATALOGUE["cora"].present


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
