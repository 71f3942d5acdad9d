"""Short trainings give what they gave when `outcomes.json` was recorded; see `record`."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.behaviour.record import OUTCOMES, combinations, covering, pairs
from tests.interpreter import ONE_THREAD, warm

ROOT = Path(__file__).parents[2]
KNOWN = json.loads(OUTCOMES.read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What this tree gives; in a process of its own, whose libraries all use one thread."""
    file = tmp_path_factory.mktemp("behaviour") / "found.json"
    command = [warm(), "-m", "tests.behaviour.record", str(file)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | ONE_THREAD, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(file.read_text())


def tolerance(name: str) -> float:
    """Allows a few predictions to flip; numbers are the same but for rounding."""
    return 0.05 if name.startswith("baseline") else 2e-3


def test_every_pair_of_settings_is_trained_by_few_of_all_combinations():
    chosen = covering(combinations())
    possible = set().union(*map(pairs, combinations()))
    assert set().union(*map(pairs, chosen)) == possible
    assert (("encoder", "gat"), ("kind", "weighted")) not in possible  # which cannot be trained
    assert len(chosen) < len(combinations()) / 4


def test_every_case_is_recorded(found):
    assert found["outcomes"].keys() == KNOWN.keys()


def test_numbers_are_those_recorded_on_any_machine(found):
    wrong = {
        name: (values, KNOWN[name]["values"])
        for name, (_, values) in found["outcomes"].items()
        if not np.allclose(values, KNOWN[name]["values"], rtol=0.02, atol=tolerance(name))
    }
    assert not wrong


def test_bits_are_those_recorded_on_this_kind_of_machine(found):
    machine = found["machine"]
    if not any(machine in entry["hashes"] for entry in KNOWN.values()):
        pytest.skip(f"no hashes were recorded on {machine}")
    wrong = [
        name
        for name, (digest, _) in found["outcomes"].items()
        if KNOWN[name]["hashes"].get(machine, digest) != digest
    ]
    assert not wrong
