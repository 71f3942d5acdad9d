"""Odd tables by the hundred: types, encodings, quoting, dates, holes, names and ids of every kind.

usage: python -m tests.tabular.odd_tables [--first 0] [--count 500]

Each must be read (exit code 0) or refused (2) with one message, without a traceback; and no column
of labels may become a feature. `test_odd_tables.py` tries a few of them.
"""

import argparse
import contextlib
import csv
import datetime as dt
import decimal
import gzip
import io
import json
import os
import random
import shlex
import tempfile
from pathlib import Path

import pyarrow
import pyarrow.parquet

from graphcl.cli.main import run

PLAIN = ["age", "Größe", "a b", 'q"q', "x,y", "AGE!", "day", "🙂", " lead", "semi;colon", "select"]
PLAIN += ["rowid", "c0", "nan", "x'y", "very" * 30]
TRAPS = ["new\nline", "label", "y", "split", "", "AGE", "age", "ROWID", "id"]
DATES = ["2020-01-05", "2020-13-45", "05.01.2020", "1/2/2020", "2020-01-05T10:00:00Z", "now"]
DATES += ["epoch", "infinity", "0001-01-01", "9999-12-31 23:59:59.999999", "12:30", "3 days", "P1D"]
ODD = ["", " ", "NA", "nan", "inf", "-inf", "1e400", "1e-400", "0x10", "1_000", "１２", "٣", "1,5"]
ODD += ["--", '"', "''", "\t", "a|b", "b|c|a", "\\N", "NULL", "True", "FALSE", "yes", "é", "漢字"]
ODD += ["e\u0301", "\u200b", "\x7f", "=1+1", "-0", "+5", " 7 ", "007", str(2**63), "word " * 40]


def cells(choose: random.Random, rows: int) -> list[str]:
    """A column of texts of one sort, with some cells of another."""
    sorts = [
        lambda: str(choose.randint(-5, 5)),
        lambda: repr(choose.uniform(-1e3, 1e3)),
        lambda: choose.choice(["red", "blue"]),
        lambda: choose.choice(DATES),
        lambda: f"2020-01-{choose.randint(1, 28):02}",
        lambda: choose.choice(ODD),
        lambda: f"some words about {choose.randint(0, 99)} things",
        lambda: "",
        lambda: choose.choice("01"),
        lambda: choose.choice(["train", "val", "test", ""]),
    ]
    sort, noise = choose.choice(sorts), choose.choice([0, 0, 0, 0.1, 0.5])
    other = choose.choice(sorts)
    return [other() if choose.random() < noise else sort() for _ in range(rows)]


def typed(choose: random.Random, rows: int) -> pyarrow.Array:
    """A column of an Arrow type, with holes."""
    day = dt.datetime(2020, 1, 1)
    sorts = {
        pyarrow.int8(): lambda: choose.randint(-9, 9),
        pyarrow.uint64(): lambda: choose.randint(2**63, 2**64 - 1),
        pyarrow.float32(): lambda: choose.choice([0.5, float("nan"), float("inf"), 3e38]),
        pyarrow.float64(): lambda: choose.choice([1e300, -2.5, 0.0]),
        pyarrow.bool_(): lambda: choose.random() < 0.5,
        pyarrow.decimal128(12, 3): lambda: decimal.Decimal("1.250"),
        pyarrow.date32(): lambda: day.date() + dt.timedelta(choose.randint(-(10**5), 10**5)),
        pyarrow.timestamp("us", "UTC"): lambda: day + dt.timedelta(hours=choose.randint(0, 999)),
        pyarrow.timestamp("ns"): lambda: day,
        pyarrow.time64("us"): lambda: dt.time(choose.randint(0, 23)),
        pyarrow.duration("s"): lambda: dt.timedelta(choose.randint(0, 9)),
        pyarrow.list_(pyarrow.float32()): lambda: [1.0] * choose.choice([2, 2, 2, 3]),
        pyarrow.list_(pyarrow.string()): lambda: ["a"],
        pyarrow.struct([("a", pyarrow.int32())]): lambda: {"a": 1},
        pyarrow.binary(): lambda: b"\xff\x00",
        pyarrow.string(): lambda: choose.choice(ODD),
        pyarrow.null(): lambda: None,
    }
    kind = choose.choice(list(sorts))
    holes = choose.choice([0, 0.1, 0.5])
    values = [None if choose.random() < holes else sorts[kind]() for _ in range(rows)]
    return pyarrow.array(values, type=kind)


def write_odd(choose: random.Random, folder: Path) -> tuple[list[str], list[str]]:
    """Writes an odd pair of tables; returns arguments of a command and the columns of labels."""
    rows, width = choose.choice([0, 1, 2, 5, 9, 9, 9]), choose.randint(1, 5)
    ids = [
        choose.choice([str(n), f"{n}.0", f"node {n}", choose.choice(ODD)])
        if choose.random() < 0.02
        else str(n)
        for n in range(rows)
    ]
    names = choose.sample(PLAIN, width)
    if choose.random() < 0.2:
        names.append(choose.choice(TRAPS))
    if choose.random() < 0.3:
        nodes = folder / "n.parquet"
        columns = {"id": pyarrow.array(ids, pyarrow.string())}
        columns |= {name: typed(choose, rows) for name in dict.fromkeys(names)}
        pyarrow.parquet.write_table(pyarrow.table(columns), nodes)
    else:
        nodes = folder / choose.choice(["n.csv", "n.csv", "n.tsv", "n.csv.gz", "n.txt"])
        text = io.StringIO()
        delimiter = "\t" if nodes.suffix == ".tsv" else choose.choice(",,,;|")
        quoting = choose.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        end = choose.choice(["\n", "\r\n"])
        writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end)
        listed = [ids, *(cells(choose, rows) for _ in names)]
        writer.writerows([["id", *names], *zip(*listed, strict=True)])
        raw = text.getvalue()
        if choose.random() < 0.04:
            raw = raw[: choose.randint(0, len(raw))]
        coding = choose.choice(["utf-8"] * 12 + ["utf-8-sig", "latin1", "utf-16"])
        data = raw.encode(coding, "replace")
        nodes.write_bytes(gzip.compress(data) if nodes.suffix == ".gz" else data)
    pairs = [(choose.choice(ids or ["0"]), choose.choice(ids or ["1"])) for _ in range(4)]
    with (folder / "e.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("source", "target"), *pairs])
    arguments = ["--nodes", str(nodes), "--id-column", "id"]
    labels = choose.sample(sorted(set(names)), min(len(set(names)), choose.choice([0, 0, 1, 1, 2])))
    for name in labels:
        arguments += ["--label", name]
    if labels and choose.random() < 0.3:
        arguments += ["--label-separator", "|"]
    for option in ("--one-hot", "--text", "--date", "--ignore", "--split"):
        if choose.random() < 0.06:
            arguments += [option, choose.choice(names)]
    for words in (["--strict"], ["--missing", choose.choice(["mean", "zero", "refuse"])]):
        if choose.random() < 0.15:
            arguments += words
    return arguments + choose.choice([[], ["--unknown-edges", "add"]]), labels


def try_one(seed: int, folder: Path) -> int:
    """Builds a store from an odd pair of tables; returns the exit code.

    Raises:
        AssertionError: the code or the message is wrong, or a label became a feature.
    """
    arguments, labels = write_odd(random.Random(seed), folder)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        command = ["build", "--edges", str(folder / "e.csv"), *arguments]
        code = run([*command, "--out", str(folder / "store"), "--overwrite", "--json"])
    said = err.getvalue()
    where = f"seed {seed}: {arguments}: {said[-600:]}"
    assert code in (0, 2), where
    assert "Traceback" not in said, where
    if code == 2:
        message = [line for line in said.splitlines() if line.startswith("graphcl")]
        assert len(message) == 1, where
        assert len(said) < 20_000, where
        _, offered, rest = said.partition("try: graphcl ")
        if offered:  # what is ready to paste settles all that was listed
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(again := io.StringIO()),
            ):
                assert run(shlex.split(rest)) in (0, 2), where
            assert "Traceback" not in again.getvalue(), where
            assert again.getvalue() != said, where
        return 2
    found = json.loads(out.getvalue())["found"]
    lowered = {name.strip().lower() for name in labels}
    for fate in found["fates"]:
        if fate["column"].strip().lower() in lowered:
            assert fate["features"] == 0, where
    for feature in found["column_features"]:
        assert feature not in labels, where
        assert not any(feature.startswith(f"{name}=") for name in labels), where
    return 0


def main() -> None:
    """Tries many and counts the exit codes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=500)
    given = parser.parse_args()
    codes, wrong = {0: 0, 2: 0}, []
    for seed in range(given.first, given.first + given.count):
        with tempfile.TemporaryDirectory() as name:
            try:
                codes[try_one(seed, Path(name))] += 1
            except AssertionError as error:
                wrong.append(str(error))
                print(f"WRONG {error}", flush=True)
    print(f"{given.count} odd tables: {codes[0]} read, {codes[2]} refused, {len(wrong)} wrong")
    os._exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
