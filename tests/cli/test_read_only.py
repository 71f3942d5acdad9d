"""A run that cannot be written to, as on a mount that is read-only, answers all the same."""

import errno
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from graphcl.cli.main import run
from tests.cli.conftest import fails

WRITES = os.O_CREAT | os.O_WRONLY | os.O_RDWR


@pytest.fixture
def read_only(monkeypatch):
    """Makes everything below a folder read-only, for root too."""

    def protect(folder):
        folder = str(Path(folder).absolute())

        def refuse(path):
            if str(Path(path).absolute()).startswith(folder):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))

        def guarded(real, path, *args, **named):
            refuse(path)
            return real(path, *args, **named)

        for name in ("mkdir", "unlink", "rename", "replace", "rmdir"):
            monkeypatch.setattr(os, name, partial(guarded, getattr(os, name)))
        opened = os.open

        def guarded_open(path, flags, *args, **named):
            if flags & WRITES:
                refuse(path)
            return opened(path, flags, *args, **named)

        monkeypatch.setattr(os, "open", guarded_open)

    return protect


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_reading_command_answers_and_says_what_is_not_kept(
    trained, folder, read_only, cache, capsys
):
    before = sorted(path.name for path in trained.rglob("*"))
    read_only(trained)
    for words, said in {
        "predict runs/mine --all": "could not be kept for the report (Read-only file system)",
        "cluster runs/mine -k 2": "could not be kept for the report (Read-only file system)",
        "links runs/mine": "could not be kept for the report (Read-only file system)",
        "links runs/mine --evaluate --negatives 5": "could not be kept for the report",
        "report runs/mine --map pca --out page.html": "",
        "embed runs/mine --out z.npy": "",
        "evaluate runs/mine": "",
        "export runs/mine --to card": "",
        "check runs/mine": "",
        "update runs/mine --versions": "",
    }.items():
        assert run(words.split()) == 0, words
        assert said in capsys.readouterr().err
    assert run(["neighbors", "runs/mine", "node 3"]) == 0
    assert "it could not be stored in runs/mine" in capsys.readouterr().err
    told = fails(capsys, "report", "runs/mine", "--map", "pca")
    assert told.endswith("(Read-only file system); name another file: --out report.html")
    assert run(["report", "runs/mine", "--map", "pca", *told.split()[-2:]]) == 0
    capsys.readouterr()
    assert "Read-only file system" in fails(capsys, "update", "runs/mine", "--rollback")
    assert sorted(path.name for path in trained.rglob("*")) == before


def test_embeddings_that_the_run_lacks_are_kept_in_the_cache(
    trained, folder, read_only, cache, capsys
):
    z = np.load(trained / "embeddings.npy")
    (trained / "embeddings.npy").unlink()
    read_only(trained)
    assert run(["neighbors", "runs/mine", "node 3"]) == 0
    assert f"its embeddings are kept in {cache}" in capsys.readouterr().err
    (kept,) = cache.rglob("embeddings.npy")
    np.testing.assert_allclose(np.load(kept), z, atol=1e-6)
    assert run(["cluster", "runs/mine", "-k", "2"]) == 0
    assert "has no embeddings" not in capsys.readouterr().err
    assert run(["report", "runs/mine", "--map", "pca", "--out", "page.html"]) == 0
