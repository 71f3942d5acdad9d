"""Files and folders that appear whole or not at all."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys

import pytest

from graphcl.errors import RunError
from graphcl.files import atomic
from graphcl.files.atomic import (
    check_new_file,
    check_new_folder,
    remove_folder,
    whole_file,
    whole_folder,
    write_whole,
)

FAILURES = [ValueError, KeyboardInterrupt, SystemExit]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def half_a_file(path, failure):
    with whole_file(path) as staging:
        staging.write_text("half")
        raise failure


def half_a_folder(path, failure):
    with whole_folder(path) as staging:
        (staging / "half").touch()
        raise failure


@pytest.fixture
def umask_027():
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.fixture
def synced(monkeypatch):
    """Returns the names of what is flushed, in order."""
    found = []
    real = atomic.sync

    def sync(path):
        found.append(path.name)
        real(path)

    monkeypatch.setattr(atomic, "sync", sync)
    return found


@pytest.mark.parametrize("content", ["naïve\n", b"\x00\xff"])
def test_a_file_is_written_and_replaced(tmp_path, content, synced):
    path = tmp_path / "a.txt"
    path.write_text("old")
    write_whole(path, content)
    assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert names(tmp_path) == ["a.txt"]
    assert len(synced) == 2
    assert synced[0].startswith(".a.txt.")  # the content, before the rename
    assert synced[1] == tmp_path.name  # the name, after it


def test_the_old_file_stays_until_the_block_ends(tmp_path):
    path = tmp_path / "z.npy"
    path.write_text("old")
    with whole_file(path) as staging:
        staging.write_text("new")
        assert path.read_text() == "old"
        assert staging.parent == tmp_path
        assert staging.name.startswith(".")
        assert staging.suffix == ".npy"  # NumPy would add it to another name
    assert path.read_text() == "new"


@pytest.mark.parametrize("failure", FAILURES)
def test_a_file_that_fails_leaves_the_old_one(tmp_path, failure):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(failure):
        half_a_file(path, failure)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_folder_that_fails_leaves_the_old_one(tmp_path, failure, exists):
    path = tmp_path / "run"
    if exists:
        path.mkdir()
        (path / "old").touch()
    with pytest.raises(failure):
        half_a_folder(path, failure)
    assert names(tmp_path) == (["run"] if exists else [])
    assert not exists or names(path) == ["old"]


def test_a_folder_is_put_in_place(tmp_path, synced):
    path = tmp_path / "above" / "run"
    with whole_folder(path) as staging:
        (staging / "sub").mkdir()
        (staging / "sub" / "file").write_text("x")
        assert not path.exists()
    assert (path / "sub" / "file").read_text() == "x"
    assert names(path.parent) == ["run"]
    assert synced[-1] == "above"
    assert {"file", "sub"} < set(synced)


@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_replaces_another(tmp_path, inside):
    path, within = tmp_path / "run", tmp_path / "work"
    for folder in (path, within):
        folder.mkdir()
    (path / "old").touch()
    with whole_folder(path, within=within if inside else None) as staging:
        (staging / "new").touch()
        assert staging.parent == (within if inside else tmp_path)
        assert names(path) == ["old"]
    assert names(path) == ["new"]
    assert names(tmp_path) == ["run", "work"]
    assert names(within) == []


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(FileNotFoundError), whole_folder(path) as staging:
        staging.rmdir()
    assert names(tmp_path) == ["run"]
    assert names(path) == ["old"]


def test_a_rename_that_fails_brings_the_old_folder_back(tmp_path, monkeypatch):
    path = tmp_path / "run"
    path.mkdir()
    (path / "old").touch()
    real = atomic.Path.rename

    def rename(source, target):
        if source.name.endswith(".partial"):
            raise OSError(5, "I/O error")
        return real(source, target)

    monkeypatch.setattr(atomic.Path, "rename", rename)
    with pytest.raises(OSError, match="I/O error"), whole_folder(path) as staging:
        (staging / "new").touch()
    assert names(tmp_path) == ["run"]
    assert names(path) == ["old"]


@pytest.mark.usefixtures("umask_027")
def test_permissions_follow_the_umask(tmp_path):
    write_whole(tmp_path / "file", "x")
    with whole_folder(tmp_path / "folder") as staging:
        (staging / "file").touch()
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"file": 0o640, "folder": 0o750}


def test_a_parent_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    for parent in (tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(OSError, match=r"a\.txt") as caught:
            write_whole(parent / "a.txt", "x")
        assert caught.value.filename == str(parent / "a.txt")
    with pytest.raises(OSError), whole_folder(tmp_path / "file" / "run"):  # noqa: PT011
        pass
    with pytest.raises(OSError), whole_folder(tmp_path / "b", within=tmp_path / "absent"):  # noqa: PT011
        pass
    assert names(tmp_path) == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_parent_without_permission(tmp_path):
    tmp_path.chmod(0o555)
    for write in (lambda: write_whole(tmp_path / "a", "x"), whole_folder(tmp_path / "b").__enter__):
        with pytest.raises(PermissionError):
            write()
    tmp_path.chmod(0o755)
    assert names(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from graphcl.files.atomic import whole_file, whole_folder
with {make}(Path(sys.argv[1])) as staging:
    ({inside}).write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(make, path):
    inside = "staging" if make == "whole_file" else "staging / 'state'"
    code = KILLED.format(make=make, inside=inside)
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


def test_a_killed_process_leaves_the_old_file(tmp_path):
    path = tmp_path / "a [1].txt"  # a name that a pattern must not misread
    path.write_text("old")
    killed("whole_file", path)
    assert path.read_text() == "old"
    (hidden,) = (name for name in names(tmp_path) if name != path.name)
    assert hidden.startswith(f".{path.name}.")
    write_whole(tmp_path / "other.txt", "x")
    assert hidden in names(tmp_path)
    write_whole(path, "new")
    assert names(tmp_path) == [path.name, "other.txt"]


def test_a_killed_process_leaves_the_old_folder(tmp_path):
    path = tmp_path / "run"
    with whole_folder(path) as staging:
        (staging / "state").write_text("old")
    killed("whole_folder", path)
    assert (path / "state").read_text() == "old"
    assert sorted(name.startswith(".run.") for name in names(tmp_path)) == [False, True]
    with whole_folder(path) as staging:
        (staging / "state").write_text("new")
    assert names(tmp_path) == ["run"]
    assert (path / "state").read_text() == "new"


@pytest.fixture
def windows(monkeypatch):
    """No locks by handles; no handles of folders; no flush by who reads; no rename while open."""
    real_open, real_sync, real_rename = os.open, os.fsync, os.rename

    def open_file(path, *options, **more):
        if os.path.isdir(path):  # noqa: PTH112
            raise PermissionError(13, "a folder", path)
        return real_open(path, *options, **more)

    def sync(handle):
        os.write(handle, b"")  # fails where the handle only reads
        real_sync(handle)

    def rename(source, target, **more):
        for handle in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with contextlib.suppress(FileNotFoundError):
                opened = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115
                assert not f"{opened}/".startswith(f"{source}/")
        real_rename(source, target, **more)

    monkeypatch.setattr(shutil, "_use_fd_functions", False)
    monkeypatch.setattr(atomic, "has_fcntl", False)
    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "replace", rename)
    monkeypatch.delattr(os, "O_NOFOLLOW")


@pytest.mark.usefixtures("windows")
def test_where_nothing_that_is_open_is_locked_or_renamed(tmp_path):
    left = tmp_path / f".a.txt.{'0' * 8}.partial.txt"
    left.touch()
    for content in ("old", "new"):
        write_whole(tmp_path / "a.txt", content)
        with whole_folder(tmp_path / "run") as staging:
            (staging / "file").write_text(content)
        assert (tmp_path / "a.txt").read_text() == content
        assert (tmp_path / "run/file").read_text() == content
    with pytest.raises(KeyError):
        half_a_folder(tmp_path / "run", KeyError)
    assert names(tmp_path) == [left.name, "a.txt", "run"]


def test_two_writers_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "a.txt"
    with whole_file(path) as first:
        first.write_text("first")
        with whole_file(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert names(tmp_path) == ["a.txt"]


def test_an_entry_removed_before_it_is_locked_is_created_again(tmp_path, monkeypatch):
    swept = []
    real = atomic.lock_descriptor

    def lock(handle, **options):
        if not swept:
            (left,) = tmp_path.iterdir()
            left.unlink()
            swept.append(left)
        return real(handle, **options)

    monkeypatch.setattr(atomic, "lock_descriptor", lock)
    write_whole(tmp_path / "a.txt", "x")
    assert swept
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_is_removed(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    remove_folder(tmp_path / "a")
    assert names(tmp_path) == []


def test_new_files_are_checked(tmp_path):
    (tmp_path / "a.npy").touch()
    (tmp_path / "b.npy").mkdir()
    for name, message in (
        ("a.txt", r"must end in \.npy or \.csv"),
        ("a.npy", "already exists"),
        ("b.npy", "is a directory"),
        ("none/a.npy", "does not exist"),
    ):
        with pytest.raises(RunError, match=message):
            check_new_file(tmp_path / name, (".npy", ".csv"), RunError, overwrite=False)
    check_new_file(tmp_path / "a.npy", (".npy",), RunError, overwrite=True)


def test_new_folders_are_checked(tmp_path, monkeypatch):
    for name in ("empty", "mine", "theirs"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine/marker").touch()
    (tmp_path / "theirs/thesis").touch()
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    for name, message in (
        (".", "give it a name"),
        ("mine", "already holds a run"),
        ("theirs", "holds files that are not part of a run"),
        ("file", "is a file; a run is a directory"),
        ("file/run", "cannot be written"),
        ("/proc/run", "cannot be written"),
    ):
        with pytest.raises(RunError, match=message):
            check(atomic.Path(name), overwrite=False)
    for name in ("empty", "mine", "new/run"):
        check(atomic.Path(name), overwrite=True)
    with pytest.raises(RunError, match="not part of a run"):
        check(atomic.Path("theirs"), overwrite=True)
    assert names(tmp_path) == ["empty", "file", "mine", "theirs"]


def check(path, *, overwrite):
    check_new_folder(path, "run", "marker", RunError, overwrite=overwrite)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), OSError("8 requested and 4 written")]
)
def test_an_error_names_what_is_being_written(tmp_path, error):
    """The hidden entry is unknown to the user; NumPy and full disks name nothing at all."""
    with pytest.raises(OSError, match=r"No space left|is the disk full") as caught:
        half_a_file(tmp_path / "z.npy", error)
    assert (caught.value.errno, caught.value.filename) == (error.errno, str(tmp_path / "z.npy"))
    with (
        pytest.raises(OSError, match="absent") as caught,
        whole_folder(tmp_path / "run") as staging,
    ):
        write_whole(staging / "absent" / "a", "x")
    assert caught.value.filename == str(tmp_path / "run" / "absent" / "a")
    with pytest.raises(OSError, match="other") as caught, whole_file(tmp_path / "z.npy"):
        (tmp_path / "other").read_text()
    assert caught.value.filename == str(tmp_path / "other")
    assert names(tmp_path) == []
