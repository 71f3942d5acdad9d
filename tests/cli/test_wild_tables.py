"""Tables that change wildly after the training: what is far from a change keeps its bits.

The preparation is the training's, so a row of the table means the same whatever stands beside it,
and an embedding depends on nothing that is more than two hops away.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from graphcl.cli.main import run

NODES, LAYERS = 80, 2
TOWNS = ("Köln", "Łódź", "Rome")
WORDS = ("sea", "hill", "fog", "dog", "code", "walk", "read", "sing")


def rows(count, random):
    for n in range(count):
        words = " ".join(random.choice(WORDS, 5))
        yield {
            "id": f"n{n:03}",
            "age": "" if n % 9 == 3 else f"{random.integers(18, 90)}",
            "town": TOWNS[n % 3] if n % 7 else "",
            "born": f"{random.integers(1950, 2000)}-0{n % 9 + 1}-11",
            "bio": words,
            "income": f"{random.normal(3000, 500):.2f}",
        }


def write_tables(stem, people, edges, tags, vectors):
    columns = list(people[-1])
    lines = [",".join(columns)]
    lines += [",".join(one.get(name, "") for name in columns) for one in people]
    Path(f"{stem}_people.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pairs = "".join(f"{a},{b}\n" for a, b in edges)
    Path(f"{stem}_edges.csv").write_text("source,target\n" + pairs, encoding="utf-8")
    listed = "".join(f"{a},{b},{c}\n" for a, b, c in tags)
    Path(f"{stem}_tags.csv").write_text("id,tag,value\n" + listed, encoding="utf-8")
    ids = list(vectors)
    np.save(f"{stem}_vectors.npy", np.array([vectors[one] for one in ids], np.float32))
    np.save(f"{stem}_ids.npy", np.array(ids))


def arguments(stem):
    return [
        f"{stem}_edges.csv",
        *("--nodes", f"{stem}_people.csv", "--tags", f"{stem}_tags.csv"),
        *("--vectors", f"{stem}_vectors.npy", "--vector-ids", f"{stem}_ids.npy"),
    ]


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Tables of a ring, and wild ones: node 5 is another, and strangers know nodes 5 and 6."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    people = list(rows(NODES, random))
    ids = [one["id"] for one in people]
    edges = [(ids[n], ids[(n + 1) % NODES]) for n in range(NODES)]
    tags = [(one, WORDS[n % 5], 1 + n % 3) for n, one in enumerate(ids) if n % 4]
    vectors = {one: random.normal(size=6) for one in ids}
    write_tables("old", people, edges, tags, vectors)

    strangers = [
        {"id": f"a{n}", "age": "1e30", "town": f"Atlantis {n}", "born": "0001-01-01"}
        | {"bio": "zyx " * 50, "income": "-1e20", "shoe": "x", "more": "1"}
        for n in range(7)
    ]
    changed = [dict(one) for one in people]
    changed[5] |= {"age": "-1e9", "town": "", "born": "2999-12-31", "bio": "", "income": ""}
    new = [stranger["id"] for stranger in strangers]
    more = [(one, ids[5]) for one in new] + [(new[0], ids[6])]
    wild = {one: random.normal(size=6) * 1e20 for one in new}
    write_tables(
        "new",
        strangers[:3] + changed + strangers[3:],  # before and after, so that numbers change
        more + edges,
        [(ids[5], "sea", 10**9), *tags, *((one, f"tag {one}", 5) for one in new)],
        wild | vectors | {ids[5]: np.full(6, -1e20)},
    )
    far = [n for n in range(NODES) if min((n - 5) % NODES, (5 - n) % NODES) > LAYERS]
    return ids, [ids[n] for n in far]


def embeddings(file):
    table = np.genfromtxt(file, delimiter=",", dtype=str, skip_header=1, encoding="utf-8")
    return {row[0]: row[1:].astype(np.float32) for row in table}


@pytest.mark.parametrize("trained_on", ["tables", "store"])
def test_what_is_far_from_a_change_keeps_its_bits(tables, trained_on, capsys):
    ids, far = tables
    given = [*arguments("old"), "--text", "bio"]
    if trained_on == "store":
        assert run(["build", "--edges", *given, "--out", "store"]) == 0
        given = ["store"]
    quick = ["--set", "epochs=2", "--set", "dim=32", "--out", "run"]
    assert run(["train", *given, *quick]) == 0
    before = Path("run/preparation.json").read_bytes()
    old, new = [*given, "--out", "old.csv"], [*arguments("new"), "--out", "new.csv"]
    assert run(["embed", "run", *(old if trained_on == "store" else old[:-4] + old[-2:])]) == 0
    capsys.readouterr()
    assert run(["embed", "run", *new]) == 0
    said = capsys.readouterr().err
    for line in (
        "numbers far outside the training's range: 'age', 'income'",
        "dates far outside the training's range",
        "7 categories are new to the model and encoded as zeros",
        "7 names are new to the model, in 7 rows: left out: 'tag a0', 'tag a1', 'tag a2', …",
        "tags: values far outside the training's range",
        "vectors: numbers far outside the training's range",
        "missing values filled with the training's mean",
    ):
        assert line in said
    was, now = embeddings("old.csv"), embeddings("new.csv")
    assert list(was) == ids
    assert len(now) == len(ids) + 7
    assert len(far) > 60
    for one in far:
        assert np.array_equal(was[one], now[one]), one
    near = set(ids) - set(far)
    assert all(not np.array_equal(was[one], now[one]) for one in near)
    assert Path("run/preparation.json").read_bytes() == before
    columns = json.loads(before)["columns"]
    ages = [float(line.split(",")[1]) for line in Path("old_people.csv").read_text().split()[1:]
            if line[0] == "n" and line.split(",")[1]]  # fmt: skip
    (age,) = (one for one in columns if one["name"] == "age")
    assert (age["fill"], age["low"], age["high"]) == (np.mean(ages), min(ages), max(ages))
