import json

import numpy as np
import pytest

from graphcl.cli.main import run
from tests.cli.conftest import QUICK


def test_neighbors_are_those_of_brute_force_under_the_ids_that_came_in(trained, capsys):
    z = np.load(trained / "embeddings.npy")
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    cosines = unit @ unit[17]
    cosines[17] = -2
    assert run(["neighbors", "runs/mine", "node 17", "-k", "5", "--json"]) == 0
    captured = capsys.readouterr()
    assert "built an index of 60 nodes (none was stored)" in captured.err
    told = json.loads(captured.out)
    assert told["id"] == "node 17"
    best = np.sort(cosines)[::-1][:5]
    np.testing.assert_allclose([n["cosine"] for n in told["neighbors"]], best, atol=2e-3)
    for entry in told["neighbors"]:
        row = int(entry["id"].removeprefix("node "))
        assert cosines[row] == pytest.approx(entry["cosine"], abs=2e-3)
        assert row != 17
    assert run(["neighbors", "runs/mine", "node 17", "-k", "100"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""  # the index was there
    assert len(captured.out.splitlines()) == 59


def test_awkward_ids(folder, capsys, arrays):
    ids = np.array(["-k", "a b", "Zoë", "", "</script>", "0", *(f"n{i}" for i in range(54))])
    np.savez("odd.npz", **arrays | {"node_ids": ids})
    assert run(["train", "odd.npz", *QUICK]) == 0
    for name in ("a b", "Zoë", "", "</script>", "0"):
        capsys.readouterr()
        assert run(["neighbors", "runs/odd", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["id"] == name
    assert run(["neighbors", "runs/odd", "--", "-k"]) == 0
