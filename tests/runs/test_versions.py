"""Versions of a run: the pointer, the list, what is shared and what is removed."""

import os
import resource
from pathlib import Path

import numpy as np
import pytest

from graphcl.errors import RunError
from graphcl.runs import versions
from graphcl.runs.files import write_object


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml").write_text("x" * 100)
    return path


def add(run, text="y", **about):
    with versions.changing(run), versions.new_version(run) as (number, folder):
        (folder / "file").write_text(text)
        write_object(folder / versions.ABOUT, {"version": number, **about})
    return number


def test_a_run_without_versions_is_its_own(run):
    assert versions.current_run(run) == run
    assert versions.current_number(run) == 0
    assert versions.numbers(run) == [0]
    assert versions.run_root(run) == run
    assert versions.own_graph(run) is None
    (only,) = versions.versions(run)
    assert (only.number, only.current, only.bytes) == (0, True, 100)


def test_a_new_version_is_the_current_one(run):
    assert (add(run), add(run)) == (1, 2)
    assert versions.current_run(run) == run / "versions/2"
    assert versions.run_root(run / "versions/2") == run
    assert [one.current for one in versions.versions(run)] == [False, False, True]
    versions.use_version(run, 0)
    assert versions.current_run(run) == run
    assert add(run) == 3
    with pytest.raises(RunError, match="no version 9; its versions: 0, 1, 2, 3"):
        versions.use_version(run, 9)


def test_a_block_that_fails_leaves_nothing(run):
    add(run)

    def fail():
        with versions.changing(run), versions.new_version(run) as (_, folder):
            (folder / "file").write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert versions.numbers(run) == [0, 1]
    assert versions.current_number(run) == 1
    assert sorted(path.name for path in (run / "versions").iterdir()) == [".lock", "1", "current"]


def test_a_full_disk_is_said_and_the_version_before_stays(run):
    """NumPy does not say that a disk is full, but how much it wrote."""
    add(run)

    def fill():
        with versions.changing(run), versions.new_version(run) as (_, folder):
            size = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, size[1]))
            try:
                np.save(folder / "embeddings.npy", np.zeros(4000))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, size)

    with pytest.raises(RunError, match=r"version 2 could not be written .*is the disk full"):
        fill()
    assert versions.numbers(run) == [0, 1]
    assert versions.current_number(run) == 1


def test_what_killed_processes_left_is_removed_by_the_next_version(run):
    add(run)
    hidden = run / "versions" / ".1.0123abcd.old"  # while an old version was removed
    hidden.mkdir()
    (hidden / "embeddings.npy").write_text("z")
    add(run)
    assert not hidden.exists()
    assert versions.numbers(run) == [0, 1, 2]


@pytest.mark.parametrize("text", ["", "two", "-1", "../../etc", "1" * 30, "7"])
def test_a_damaged_pointer_is_said(run, text):
    add(run)
    (run / "versions/current").write_text(text)
    with pytest.raises(RunError, match=r"versions/current: (damaged|names version 7)"):
        versions.current_run(run)


def test_old_versions_are_removed_but_never_the_current_one(run):
    for _ in range(5):
        add(run)
    versions.use_version(run, 1)
    assert versions.keep_newest(run, 3) == [2, 3]
    assert versions.numbers(run) == [0, 1, 4, 5]
    assert versions.keep_newest(run, 1) == [4, 5]
    assert versions.current_number(run) == 1


def test_shared_files_are_counted_once(run):
    add(run, "z" * 1000)
    with versions.changing(run), versions.new_version(run) as (_, folder):
        versions.share_files(run / "versions/1", folder, ["file", "absent"])
        assert [path.name for path in folder.iterdir()] == ["file"]
        write_object(folder / versions.ABOUT, {})
    sizes = [one.bytes for one in versions.versions(run)]
    assert sizes[1] >= 1000
    assert sizes[2] < 100


def test_a_disk_without_links_gets_copies(run, monkeypatch):
    def refuse(*_):
        raise OSError("no links")

    monkeypatch.setattr(os, "link", refuse)
    versions.share_file(run / "config.toml", run / "copy")
    assert (run / "copy").read_text() == "x" * 100
    assert not (run / "copy").samefile(run / "config.toml")


def test_one_process_at_a_time(run):
    with (
        versions.changing(run),
        pytest.raises(RunError, match="another process is changing"),
        versions.changing(run),
    ):
        pass


def test_lines_for_a_terminal(run):
    add(run, nodes=12, made="2024-05-06T07:08:09+00:00", retrained={"epochs": 2})
    head, first, second = versions.describe(versions.versions(run))
    assert head.split() == ["version", "made", "MB", "nodes", "by"]
    assert first.split() == ["0", "0.0", "training"]
    wanted = ["*", "1", "2024-05-06", "07:08:09", "0.0", "12", "update,", "trained", "on"]
    assert second.split() == wanted


def test_a_folder_called_versions_makes_no_run_a_version(tmp_path):
    path = Path(tmp_path / "versions/mine")
    path.mkdir(parents=True)
    assert versions.run_root(path) == path
