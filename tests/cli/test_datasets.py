import json

import numpy as np

from graphcl.cli.main import run


def test_datasets_prints_table_1(capsys):
    assert run(["datasets"]) == 0
    out = capsys.readouterr().out
    for text in (
        "Cora",
        "5,429 (5,278)",
        "3,707 (3,703)",
        "Reddit",
        "11,606,919",
        "151,708/23,699/55,334",
    ):
        assert text in out


def test_the_gallery_is_listed_where_there_is_one(here, capsys, monkeypatch):
    assert run(["datasets"]) == 0
    assert "Gallery" not in capsys.readouterr().out
    (here / "graphs").mkdir()
    edges, x = np.array([[0, 1], [1, 2]]), np.ones((3, 7), np.uint8)
    np.savez("graphs/tiny.npz", edge_index=edges, x=x, y=np.array([1, 2, -1]))
    (here / "graphs/torn.npz").write_bytes(b"no zip")
    monkeypatch.setenv("GRAPHCL_DATA", str(here))
    assert run(["datasets"]) == 0
    lines = capsys.readouterr().out.split("Gallery")[1].splitlines()
    assert lines[2].split() == ["tiny", "3", "2", "7", "2", "0"]
    assert lines[3].split() == ["torn", "–", "–", "–", "–", "–", "damaged"]
    assert run(["datasets", "--json"]) == 0
    tiny, torn = json.loads(capsys.readouterr().out)["gallery"]
    assert (tiny["name"], tiny["edges"], tiny["several_labels"]) == ("tiny", 2, False)
    assert "not a readable .npz" in torn["damaged"]
