import json

import numpy as np

from graphcl.report.index import ABOUT, INDEX, stored_index


def test_it_is_built_once_and_again_when_embeddings_change(tmp_path):
    z = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    index, why = stored_index(tmp_path, z)
    assert why == "there was none"
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
        assert why == "the old one is damaged"
        assert len(index) == 20
    (tmp_path / ABOUT).write_text("{")
    assert stored_index(tmp_path, z)[1] == "there was none"
    assert json.loads((tmp_path / ABOUT).read_text())["rows"] == 20


def test_a_run_that_cannot_be_written_is_served_from_memory(tmp_path):
    z = np.eye(5, dtype=np.float32)
    index, why = stored_index(tmp_path / "absent", z)
    assert "could not be kept" in why
    assert len(index) == 5
