import numpy as np


def test_checksums_do_not_depend_on_threads(tmp_path, monkeypatch):
    from graphcl.files import checksums

    monkeypatch.setattr(checksums, "CHUNK_BYTES", 1000)
    (tmp_path / "f").write_bytes(np.random.default_rng(0).bytes(12_345))
    digests = {checksums.file_digest(tmp_path / "f", threads=count) for count in (1, 4)}
    assert len(digests) == 1
    (tmp_path / "f").write_bytes(b"")
    assert len(checksums.file_digest(tmp_path / "f")) == 64
