"""Downloads are compared with their checksum, and forged archives are refused."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from graphcl.datasets.ppi import fetch_zip
from graphcl.errors import DatasetError
from tests.files.test_arrays import NPZ
from tests.runs.test_files import RUNS
from tests.scripts.test_build_planetoid import PICKLES
from tests.store.test_reader import STORES

pytestmark = pytest.mark.usefixtures("nothing_runs")


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
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"good": b"1", "_DOT__DOT___evil": b"2"}, "expected a plain file name"),
        ({"__etc__evil": b"2"}, "expected a plain file name"),
        ({"other": b"1"}, "does not contain good"),
        ({"good": bytes(2**21)}, "more than 1048576 bytes"),
    ],
)
def test_archives_that_are_downloaded(files, message, tmp_path):
    uri = archive_of(tmp_path / "a.zip", **files)
    with pytest.raises(DatasetError, match=message):
        fetch_zip(uri, tmp_path / "raw", sha256=digest(uri), names=["good"], limit=2**20)
    assert not (tmp_path / "raw").exists()
    assert not (tmp_path / "evil").exists()


def test_the_corpus_is_large():
    assert sum(map(len, (NPZ, STORES, RUNS, PICKLES))) >= 40
