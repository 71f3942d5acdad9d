"""Lines of the log, and a stderr of which each line is an object."""

import json
import logging
import sys
import threading
import traceback

import pytest

from graphcl.serving.log import Log, objects_on_stderr


def test_whatever_is_written_becomes_objects(capfd):
    with objects_on_stderr():
        print("one", "two", file=sys.stderr)
        sys.stderr.write("half ")
        sys.stderr.write("a line\n\nan end without a break")
        handler = logging.StreamHandler()  # as uvicorn configures one
        handler.emit(logging.makeLogRecord({"msg": 'a "warning"'}))
        try:
            raise ValueError("ü\x1b[31m")
        except ValueError:
            traceback.print_exc()
        Log("json").event("version", "version 2\nanswers", version=2)
    print("plain again", file=sys.stderr)
    *lines, last = capfd.readouterr().err.splitlines()
    assert last == "plain again"
    found = [json.loads(line) for line in lines]
    said = [one["message"] for one in found]
    assert said[:2] == ["one two", "half a line"]
    assert any('a "warning"' in one for one in said)
    assert any("ValueError: ü" in one for one in said)
    assert {"event": "version", "version": 2, "message": "version 2 answers"}.items() <= next(
        one for one in found if one["event"] == "version"
    ).items()
    assert all(one["time"] for one in found)


def test_threads_do_not_mix(capfd):
    with objects_on_stderr():
        threads = [
            threading.Thread(
                target=lambda n=n: [print(f"{n}", "x", n, file=sys.stderr) for _ in range(50)]
            )
            for n in range(4)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    found = [json.loads(line)["message"] for line in capfd.readouterr().err.splitlines()]
    assert sorted(found) == sorted([f"{n} x {n}" for n in range(4)] * 50)


@pytest.mark.parametrize("form", ["lines", "none"])
def test_events_are_lines_without_breaks(form, capsys):
    Log(form).event("version", "version 2\nanswers", version=2)
    assert capsys.readouterr().err == "serve: version 2 answers\n"
