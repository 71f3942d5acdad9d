#!/usr/bin/env bash
# Tries the wheel of dist/ as a stranger would: in a clean environment, away from the sources. It trains on
# Cora, and runs the table "every command takes every graph" (docs/use/what-works.md).
# usage: scripts/try_release.sh [PYTHON]
set -euo pipefail
top=$PWD
room=$top/build/release
rm -rf "$room"
mkdir -p "$room/work"
"${1:-python3}" -m venv "$room/venv"
wheel=$(ls "$top"/dist/graphcl-*.whl)
pip=("$room/venv/bin/pip" install --quiet --disable-pip-version-check -c "$top/constraints.txt")
"${pip[@]}" "$wheel"
cd "$room/work"
"$room/venv/bin/graphcl" train cora --out runs/cora
"$room/venv/bin/graphcl" embed runs/cora --out cora.npy
"${pip[@]}" "$wheel[export,neighbors,pandas,plot,report,serve,tables,tune]" httpx hypothesis pytest
mkdir docs
cp -r "$top/tests" "$top/pyproject.toml" .
cp -r "$top/docs/use" docs/use
"$room/venv/bin/python" - <<'P'
import graphcl, pathlib
place = pathlib.Path(graphcl.__file__)
assert "site-packages" in place.parts, f"not the wheel's: {place}"
print(f"graphcl {graphcl.__version__} from its wheel")
P
# Without the options of pyproject.toml, which are for several processes.
"$room/venv/bin/python" -m pytest -q -o addopts=--import-mode=importlib tests/cli/test_every_graph.py
