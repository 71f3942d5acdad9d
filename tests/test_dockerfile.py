"""The Dockerfile is sound, and its commands do outside Docker what they should inside."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from graphcl.cli.main import load_command
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
    known = {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "EXPOSE", "STOPSIGNAL", "ARG"}
    assert {name for name, _ in STEPS} == known | {"HEALTHCHECK", "ENTRYPOINT"}
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
    installs = [text for text in rest("RUN") if "pip" in text]
    assert all("--only-binary :all:" in text or "--no-deps ." in text for text in installs)
    assert "http" not in " ".join(installs)
    code = [line for line in LINES if not line.startswith("#")]
    assert not re.search(r"(?i)token=|password|secret", "\n".join(code))


def test_what_is_not_copied_is_not_sent_to_the_builder():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    copied = {source for text in rest("COPY") for source in text.split()[:-1]}
    assert rules[0] == "*"
    assert {rule[1:] for rule in rules if rule.startswith("!")} == copied
    assert "**/__pycache__" in rules


def test_dependencies_come_before_sources_and_torch_before_all():
    place = {f"{name} {text}": number for number, (name, text) in enumerate(STEPS)}
    first, *others, last = [one for one in place if one.startswith("RUN") and "pip install" in one]
    assert first.endswith('${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch')
    assert place["ARG TORCH_INDEX"] < place[first]
    assert all("-c constraints.txt" in one for one in (first, *others))
    assert all(place[one] < place["COPY src src"] for one in (first, *others))
    assert "--no-deps ." in last
    assert place[last] > place["COPY src src"]


def test_it_installs_what_the_project_asks_for():
    (command,) = [text for text in rest("RUN") if "tomllib" in text]
    found = re.fullmatch(r'python -c "(.*)"\s+> requirements.txt\s+&& (.*)', command)
    code, option = found.groups()
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()
    extras = PROJECT["optional-dependencies"]
    assert found == [*PROJECT["dependencies"], *extras["serve"], *extras["tables"]]
    assert option.endswith("-r requirements.txt")


@pytest.mark.usefixtures("forked")
def test_its_commands_run_outside_docker(trained):
    program, command, model, *arguments = listed("ENTRYPOINT")
    assert (program, command, model) == ("graphcl", "serve", "/model")
    assert not rest("CMD")  # arguments of `docker run` come after these, and replace nothing
    known = {option for one in load_command(command).params for option in one.opts}
    assert {word for word in arguments if word.startswith("--")} <= known
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    host, port = given["--host"], given["--port"]
    assert host == "0.0.0.0"
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
