"""The user's key: one, whoever starts first, and made anew where it is broken."""

import os
import stat
import subprocess
import sys
import time

import pytest

from graphcl.files.user import KEY, user_cache, user_key


@pytest.fixture
def key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "graphcl" / KEY


def test_it_stays(key):
    assert len(user_key()) == 32
    assert user_key() == key.read_bytes()
    assert key.parent == user_cache()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


@pytest.mark.parametrize("broken", [b"", b"short", b"x" * 33])
def test_a_file_that_holds_no_key_is_replaced(key, broken):
    """It was kept, and every start drew another key: one's own runs were refused."""
    key.parent.mkdir()
    key.write_bytes(broken)
    found = user_key()
    assert found == user_key() == key.read_bytes()
    assert len(found) == 32


@pytest.mark.parametrize("before", [None, b""])
def test_processes_that_start_together_agree(key, tmp_path, before):
    if before is not None:
        key.parent.mkdir()
        key.write_bytes(before)
    script = (
        "import sys, time, pathlib\n"
        "from graphcl.files.user import user_key\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "while not pathlib.Path(sys.argv[2]).exists(): pass\n"
        "print(user_key().hex())\n"
    )
    ready, begin = [tmp_path / f"ready-{number}" for number in range(3)], tmp_path / "begin"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(one), str(begin)], stdout=subprocess.PIPE, text=True
        )
        for one in ready
    ]
    last = time.monotonic() + 60
    while not all(one.exists() for one in ready) and time.monotonic() < last:
        time.sleep(0.01)
    begin.touch()
    found = {one.communicate(timeout=60)[0].strip() for one in started}
    assert found == {key.read_bytes().hex()}


def test_where_nothing_can_be_written_it_is_for_once(key, monkeypatch):
    key.parent.mkdir()
    key.mkdir()
    first = user_key()
    assert len(first) == 32
    assert user_key() != first
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    assert len(user_key()) == 32
