import json

import numpy as np
import pytest

from graphcl.answers.index import ABOUT, INDEX, stored_index
from graphcl.files.user import KEY


@pytest.fixture(autouse=True)
def home(tmp_path_factory, monkeypatch):
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


def test_it_is_built_once_and_again_when_embeddings_change(tmp_path):
    z = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    index, why = stored_index(tmp_path, z)
    assert why == "none was stored"
    first = index.search(z[3], 5).keys.tolist()
    assert first[0] == 3
    before = (tmp_path / INDEX).stat().st_mtime_ns
    again, why = stored_index(tmp_path, z)
    assert why == ""
    assert again.search(z[3], 5).keys.tolist() == first
    assert (tmp_path / INDEX).stat().st_mtime_ns == before
    z[3] = -z[3]
    changed, why = stored_index(tmp_path, z)
    assert why == "the embeddings have changed"
    assert changed.search(z[3], 5).keys.tolist() != first
    assert {path.name for path in tmp_path.iterdir()} == {INDEX, ABOUT}


def test_a_damaged_index_is_built_anew(tmp_path):
    z = np.eye(20, dtype=np.float32)
    stored_index(tmp_path, z)
    whole = (tmp_path / INDEX).read_bytes()
    for damage in (b"", whole[: len(whole) // 2], b"x" * 100):
        (tmp_path / INDEX).write_bytes(damage)
        index, why = stored_index(tmp_path, z)
        assert why.startswith("the stored one is damaged")
        assert len(index) == 20
    (tmp_path / ABOUT).write_text("{")
    assert stored_index(tmp_path, z)[1] == "none was stored"
    assert json.loads((tmp_path / ABOUT).read_text())["rows"] == 20


def test_a_run_that_cannot_be_written_is_served_from_memory(tmp_path):
    z = np.eye(5, dtype=np.float32)
    index, why = stored_index(tmp_path / "absent", z)
    assert "could not be stored" in why
    assert len(index) == 5


def test_an_index_that_another_user_sealed_is_not_read(tmp_path, home, monkeypatch):
    z = np.eye(20, dtype=np.float32)
    stored_index(tmp_path, z)
    assert (home / "graphcl" / KEY).stat().st_mode & 0o777 == 0o600
    assert stored_index(tmp_path, z)[1] == ""
    (home / "graphcl" / KEY).unlink()  # now somebody else's, as far as we can tell
    monkeypatch.setattr("graphcl.answers.index.empty_index", lambda dim: _Untouchable())
    assert "another user built it" in stored_index(tmp_path, z)[1]


class _Untouchable:
    def load(self, path):
        raise AssertionError(f"{path} was read")


def test_without_a_place_for_the_key_every_index_is_built(tmp_path, monkeypatch):
    z = np.eye(20, dtype=np.float32)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    stored_index(tmp_path, z)
    assert stored_index(tmp_path, z)[1] != ""
