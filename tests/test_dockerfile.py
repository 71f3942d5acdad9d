"""The Dockerfile is sound, and its commands do outside Docker what they should inside."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from graphcl.cli._shared.lazy import load_command
from tests.cli.test_serve import TOKEN, Process, trained

ROOT = Path(__file__).parents[1]
LINES = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text()).splitlines()
STEPS = [line.split(maxsplit=1) for line in LINES if line.strip() and not line.startswith("#")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

__all__ = ["trained"]  # a fixture


def rest(step):
    return [text for name, text in STEPS if name == step]


def listed(step):
    (text,) = rest(step)
    return json.loads(text.partition("[")[1] + text.partition("[")[2])


def test_its_steps_are_those_that_are_known():
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "EXPOSE", "STOPSIGNAL"}
    assert {name for name, _ in STEPS} == known | {"HEALTHCHECK", "ENTRYPOINT", "CMD"}
    (image,) = rest("FROM")
    assert re.fullmatch(r"python:3\.\d+-slim", image)
    python = image.removeprefix("python:").removesuffix("-slim")
    assert PROJECT["requires-python"] == f">={python}"


def test_the_service_is_not_root():
    names = [name for name, _ in STEPS]
    (user,) = rest("USER")
    assert user != "root"
    assert any(f"useradd --create-home --uid 10001 {user}" in text for text in rest("RUN"))
    assert names.index("USER") > max(place for place, name in enumerate(names) if name == "RUN")


def test_what_it_copies_is_there_and_nothing_else_is_fetched():
    for text in rest("COPY"):
        *sources, _ = text.split()
        assert all((ROOT / source).exists() for source in sources)
    (install,) = [text for text in rest("RUN") if "pip" in text]
    assert "--only-binary :all:" in install
    assert "http" not in install
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', install)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert not re.search(r"(?i)token=|password|secret", "\n".join(LINES[4:]))


def test_its_commands_run_outside_docker(trained):
    program, command, _ = listed("ENTRYPOINT")
    arguments = listed("CMD")
    assert (program, command) == ("graphcl", "serve")
    known = {option for one in load_command(command).params for option in one.opts}
    assert {word for word in arguments if word.startswith("--")} <= known
    host, port = arguments[1], arguments[3]
    assert rest("EXPOSE") == [port]
    python, *check = listed("HEALTHCHECK")
    assert python == "python"

    def healthy(at):
        there = [word.replace(f":{port}/", f":{at}/") for word in check]
        return subprocess.run([sys.executable, *there], capture_output=True, check=False).returncode

    with Process(str(trained), "--host", host, "--map", "none", GRAPHCL_TOKEN=TOKEN) as service:
        assert healthy(service.port) == 0
        assert service.wait().json()["status"] == "ok"
        service.process.terminate()
        assert service.process.wait(30) == 0
        assert healthy(service.port) != 0


def test_its_environment_is_plain():
    for text in rest("ENV"):
        assert all("=" in pair for pair in text.split())
    assert os.sep not in rest("STOPSIGNAL")[0]
