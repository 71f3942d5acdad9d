"""A year of a service in an hour: updates, requests, clients that die, and hostile ones.

usage: python -m benchmarks.year [--minutes 60] [--nodes 100000] [--updates 2000]
           [--requests 200000] [--workers 2] [--clients 16] [--kills 12] [--out FILE]

`graphcl serve` answers about a run while another process updates it again and again by
`graphcl.Run.update`: a few new nodes and edges each time, and now and then the way back to the
version before. That process is killed at times (SIGKILL, wherever it is), and started again.
Clients ask for embeddings of known and of new nodes and for similar nodes; some leave in the
middle of a request, and some send what makes no sense. An answer says which version it is of. Some
are compared with what that version holds, new nodes with the model on that version's graph.

A row for each minute: requests, statuses, times from sending to the last byte, memory and open
files of all processes of the service, the run's disk, the newest version and the one that answers.
One row for the whole: what was compared, and the disk used beside the changes made.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch

import graphcl
from benchmarks import rows
from benchmarks.live_service import Service, percentiles
from benchmarks.update import WINDOW, links, own_bytes
from graphcl.estimator.model import GraphCL
from graphcl.files.atomic import write_whole
from graphcl.graphs.graph import Graph
from graphcl.runs.files import read_embeddings
from graphcl.runs.versions import VERSIONS, current_number
from graphcl.store.columns import Ids

RESULTS = Path(__file__).parent / "results/year.jsonl"
PAGE = Path(__file__).parents[1] / "docs/operate/service.md"
FEATURES, DIM = 32, 64
NEW, LINKS = 20, 100  # nodes and edges of an update
BACK = 25  # of so many updates one is followed by the way back
KILLED, HOSTILE, COMPARED = 0.01, 0.01, 0.01  # shares of requests
NONSENSE = (
    b"GET /\r\n\r\n",
    b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999\r\n\r\n",
    b"POST /v1/embed HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 2\r\n\r\n{}",
    b"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: 40000\r\n\r\n" + b'{"ids": [' + b"0.5, " * 7997 + b"1]}   ",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" * 100,
)


def build(folder: Path, nodes: int) -> None:
    """Writes a store and a run of a model that was hardly trained: times do not depend on it."""
    rng = np.random.default_rng(0)
    edges = links(rng, 1, nodes)
    x = rng.standard_normal((nodes, FEATURES), dtype=np.float32)
    names = [f"n{row}" for row in range(nodes)]
    Graph.from_edge_index(edges, x, name="year", node_ids=names).save(folder / "store")
    graph = Graph.open(folder / "store")
    small = Graph.from_edge_index(links(rng, 1, 1000), x[:1000])
    model = GraphCL(epochs=1, dim=DIM, layers=2, device="cpu").fit(small)
    model.save(folder / "run", graph=graph)


def update(folder: Path, options: argparse.Namespace) -> None:
    """Updates the run at even times, from number `options.first` on; prints JSON for each."""
    graph = None if current_number(folder / "run") else folder / "store"  # a version has its own
    run = graphcl.Run(folder / "run", graph=graph, device="cpu")
    rng = np.random.default_rng(1 + options.first)
    pause = options.minutes * 60 / max(1, options.updates)
    for number in range(options.first, options.updates):
        time.sleep(max(0.0, options.began + number * pause - time.time()))
        if time.time() > options.began + options.minutes * 60:
            break
        new = [f"new {os.getpid()} {number} {place}" for place in range(NEW)]
        table = pandas.DataFrame(rng.standard_normal((NEW, FEATURES), dtype=np.float32))
        table = table.rename(columns="x{}".format)
        table.insert(0, "id", new)
        place = rng.integers(0, options.nodes - WINDOW)  # new nodes join one neighbourhood
        ends = np.char.add("n", rng.integers(place, place + WINDOW, LINKS).astype(str))
        first = rng.choice(np.array(new), LINKS)
        edges = pandas.DataFrame({"source": first, "target": ends})
        start = time.perf_counter()
        with ThreadPoolExecutor(1) as pool:  # as schedulers do
            done = pool.submit(run.update, nodes=table, edges=edges).result()
        about: dict[str, Any] = {"version": done.version, "at": time.time()}
        about["seconds"] = round(time.perf_counter() - start, 3)
        about["embedded"] = done.about["embedded"]
        about["bytes"] = NEW * FEATURES * 4 + LINKS * 16
        about["written"] = own_bytes(done.path)
        if number % BACK == BACK - 1:
            run.rollback()
        print(json.dumps(about), flush=True)


class Updater:
    """The process that updates, which is killed at times and started again.

    Args:
        folder: of the run.
        options: of the command line.
        began: when the year began.
    """

    def __init__(self, folder: Path, options: argparse.Namespace, began: float) -> None:
        self._folder, self._options, self._began = folder, options, began
        self._made = (folder / "made.jsonl").open("a")
        draw = random.Random(1)
        length = options.minutes * 60
        self._due = sorted(began + draw.random() * length for _ in range(options.kills))
        self.kills = 0
        self._start()

    def _start(self) -> None:
        command = [sys.executable, "-m", "benchmarks.year", str(self._folder), "--role", "updater"]
        given = {name: getattr(self._options, name) for name in ("updates", "minutes", "nodes")}
        given |= {"began": self._began, "first": len(self.made())}
        command += [part for key, value in given.items() for part in (f"--{key}", str(value))]
        self._process = subprocess.Popen(command, stdout=self._made)

    def made(self) -> list[dict[str, Any]]:
        """Returns what it has said of each update; a line that it was killed in is left out."""
        found = []
        for line in (self._folder / "made.jsonl").read_text().splitlines():
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def look(self) -> None:
        """Kills it when that is due, and starts it again."""
        if self._due and time.time() > self._due[0]:
            self._due.pop(0)
            self._process.kill()
            self._process.wait()
            self.kills += 1
            self._start()
        elif self._process.poll():
            raise SystemExit("an update failed")

    def wait(self) -> None:
        """Waits for the last update."""
        if self._process.wait(120):
            raise SystemExit("an update failed")


def ask_bytes(path: str, body: dict[str, Any]) -> bytes:
    sent = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(sent) + sent


class Year:
    """The clients, and what they found."""

    def __init__(self, folder: Path, port: int, options: argparse.Namespace) -> None:
        self.folder, self.port, self.options = folder, port, options
        self.began, self.draw = time.time(), random.Random(0)
        self.times: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.versions: set[int] = set()
        self.pending: list[tuple[int, dict[str, Any], dict[str, Any]]] = []
        self.compared = self.wrong = self.gone = self.asked = 0
        self.largest = 0.0

    def question(self) -> tuple[str, dict[str, Any]]:
        """Returns a question: mostly known nodes, some new ones, some similar ones."""
        drawn, known = self.draw.random(), [f"n{self.draw.randrange(self.options.nodes)}"]
        if drawn < 0.6:
            return "/v1/embed", {"ids": known}
        if drawn < 0.9:
            near = [f"n{self.draw.randrange(self.options.nodes)}" for _ in range(5)]
            features = [round(self.draw.gauss(0, 1), 4) for _ in range(FEATURES)]
            return "/v1/embed", {"new": [{"features": features, "neighbors": near}]}
        return "/v1/neighbors", {"ids": known, "k": 5}

    async def client(self, pause: float, end: float) -> None:
        """Asks at even times until the end."""
        streams: Any = None
        due = time.time() + self.draw.random() * pause
        while (now := time.time()) < end:
            await asyncio.sleep(max(0.0, due - now))
            due = max(due + pause, time.time() - 10 * pause)
            path, body = self.question()
            drawn = self.draw.random()
            self.asked += 1
            try:
                if streams is None:
                    streams = await asyncio.open_connection("127.0.0.1", self.port)
                reader, writer = streams
                if drawn < HOSTILE + KILLED:  # says nonsense, or half a request; and leaves
                    sent = ask_bytes(path, body)
                    hostile = drawn < HOSTILE
                    writer.write(self.draw.choice(NONSENSE) if hostile else sent[:-9])
                    await writer.drain()
                    if hostile:
                        with suppress(TimeoutError):
                            answer = await asyncio.wait_for(reader.read(1000), 15)
                            status = answer[9:12].decode("latin-1") or "closed"
                            self.statuses[f"hostile {status}"] += 1
                    writer.transport.abort()
                    streams = None
                    continue
                start = time.perf_counter()
                writer.write(ask_bytes(path, body))
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
                answer = await reader.readexactly(length)
                self.times.append(time.perf_counter() - start)
                status = head[9:12].decode()
                self.statuses[status] += 1
                if status == "200":
                    version = int(head.split(b"x-run-version:")[1].split(b"\r\n")[0])
                    self.versions.add(version)
                    if self.draw.random() < COMPARED:
                        self.pending.append((version, body, json.loads(answer)))
            except (OSError, asyncio.IncompleteReadError, IndexError):
                self.statuses["no answer"] += 1
                streams = None

    def compare(self) -> None:
        """Compares some answers with what their version holds, where it is still kept."""
        todo, self.pending = self.pending, []
        for version, body, answer in todo:
            path = self.folder / "run"
            folder = path / VERSIONS / str(version) if version else path
            try:
                z = read_embeddings(folder)
                graph = Graph.open(folder / "graph" if version else self.folder / "store")
                if "new" in body:
                    (node,) = body["new"]
                    model = GraphCL.load(folder, device="cpu")
                    x = np.array(node["features"], np.float32)
                    expected = model.embed_new(x, node["neighbors"], graph=graph)
                    found = np.array(answer["nodes"][0]["embedding"], np.float32)
                elif "k" in body:
                    # The index is approximate: the cosines of those that it found are compared.
                    ids = [body["ids"][0], *(one["id"] for one in answer["nodes"][0]["neighbors"])]
                    own, *others = np.asarray(z[Ids(graph.node_ids).find(ids)])
                    lengths = [np.linalg.norm(own) * np.linalg.norm(one) for one in others]
                    expected = np.array([own @ one for one in others]) / lengths
                    found = np.array([one["cosine"] for one in answer["nodes"][0]["neighbors"]])
                else:
                    expected = np.asarray(z[[int(body["ids"][0][1:])]])[0]
                    found = np.array(answer["nodes"][0]["embedding"], np.float32)
            except (OSError, graphcl.GraphCLError):  # removed meanwhile
                self.gone += 1
                continue
            difference = float(np.abs(found - expected).max())
            self.largest = max(self.largest, difference)
            self.compared += 1
            self.wrong += difference > 1e-5

    def minute(self, number: int, pids: list[int]) -> dict[str, Any]:
        """Returns the row of a minute, and begins the next."""
        times, self.times = self.times, []
        statuses, self.statuses = self.statuses, Counter()
        versions, self.versions = self.versions, set()
        return {
            "what": "minute",
            "minute": number,
            "requests": len(times),
            **(percentiles(times, "ms") if times else {}),
            "statuses": dict(sorted(statuses.items())),
            **resources(pids),
            "disk": disk(self.folder / "run"),
            "newest_version": current_number(self.folder / "run"),
            "answered_by": [min(versions), max(versions)] if versions else [],
            "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
        }


def family(pid: int) -> list[int]:
    """Returns a process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *map(int, children)]


def resources(pids: list[int]) -> dict[str, Any]:
    """Returns the memory and the open files of processes; `shared` counts each page once."""
    found = {"processes": len(pids), "memory": 0, "memory_shared": 0, "files": 0}
    for pid in pids:
        with suppress(OSError):
            said = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in said[1:]}
            found["memory"] += kilobytes["Rss"] * 1024
            found["memory_shared"] += kilobytes["Pss"] * 1024
            found["files"] += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return found


def disk(folder: Path) -> int:
    """Returns the bytes on disk; of a file with several names, once."""
    seen = {}
    for above, _, names in os.walk(folder):  # which leaves out what goes meanwhile
        for name in names:
            with suppress(OSError):
                about = Path(above, name).lstat()
                seen[about.st_ino] = about.st_blocks * 512
    return sum(seen.values())


def median_of(listed: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the median seconds of updates."""
    seconds = [one["seconds"] for one in listed]
    return {"update_seconds": round(float(np.median(seconds)), 3) if seconds else None}


async def live(folder: Path, service: Service, options: argparse.Namespace) -> None:
    """Runs the year."""
    seconds = options.minutes * 60
    year = Year(folder, service.port, options)
    before = disk(folder / "run")
    updater, done = Updater(folder, options, year.began), 0
    end = year.began + seconds
    pause = seconds * options.clients / options.requests
    clients = [asyncio.create_task(year.client(pause, end)) for _ in range(options.clients)]
    about = rows.provenance(torch.device("cpu")) | {"workers": options.workers}
    about |= {"nodes": options.nodes, "length_minutes": options.minutes}
    number, most = 0, 0
    while time.time() < end:
        number += 1
        while time.time() < min(end, year.began + 60 * number):
            await asyncio.sleep(1)
            updater.look()
            await asyncio.to_thread(year.compare)
        row = year.minute(number, family(service.process.pid))
        listed = updater.made()
        row |= {"updates": len(listed) - done, "kills": updater.kills}
        row |= median_of(listed[done:])
        done = len(listed)
        most = max(most, row["memory"])
        rows.append(options.out, row | about)
        print(row, flush=True)
    await asyncio.gather(*clients)
    await asyncio.to_thread(updater.wait)
    listed = updater.made()
    await asyncio.to_thread(year.compare)
    service.process.send_signal(signal.SIGTERM)
    code = await asyncio.to_thread(service.process.wait, 60)
    row = {
        "what": "year",
        "updates": len(listed),
        "kills": updater.kills,
        **median_of(listed),
        "asked": year.asked,
        "compared": year.compared,
        "wrong": year.wrong,
        "largest_difference": year.largest,
        "version_gone": year.gone,
        "memory": most,
        "changes_bytes": sum(one["bytes"] for one in listed),
        "embedded_bytes": sum(one["embedded"] for one in listed) * DIM * 4,
        "written_bytes": sum(one["written"] for one in listed),
        "disk_before": before,
        "disk_after": disk(folder / "run"),
        "exit_code": code,
    }
    rows.append(options.out, row | about)
    print(row, flush=True)


def last_year(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows of the last of the longest years that ended."""
    longest = max(row["length_minutes"] for row in found)
    found = [row for row in found if row["length_minutes"] == longest]
    (commit,) = [row["commit"] for row in found if row["what"] == "year"][-1:]
    return [row for row in found if row["commit"] == commit]


def page(text: str, found: list[dict[str, Any]]) -> str:
    """Returns docs/operate/service.md with its table of the last of the longest years."""
    found = last_year(found)
    minutes = [row for row in found if row["what"] == "minute"]
    (year,) = [row for row in found if row["what"] == "year"]
    lines = [
        "| minutes | answered | p50 | p99, best to worst minute | memory | of it, each page once | "
        "open files, at most | updates | seconds of one | busy processes per core |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    tens = [(start + 1, start + 10) for start in range(10, len(minutes), 10)]
    for first, last in ((1, 1), (2, 10), *tens):
        some = [row for row in minutes if first <= row["minute"] <= last]
        of = {key: [row[key] for row in some] for key in some[0] if key in some[-1]}
        memory, shared = (
            f"{min(of[key]) / 1e9:.2f}–{max(of[key]) / 1e9:.2f} GB"
            for key in ("memory", "memory_shared")
        )
        best, worst = min(of["p99_ms"]), max(of["p99_ms"])
        lines.append(
            f"| {first if first == last else f'{first}–{last}'} | {sum(of['requests']):,} | "
            f"{np.median(of['p50_ms']):.0f} ms | {best:.0f}–{worst:.0f} ms | {memory} | {shared} | "
            f"{max(of['files'])} | {sum(of['updates']):,} | "
            f"{np.median(of['update_seconds']):.1f} | {np.mean(of['load']):.0f} |"
        )
    statuses = Counter[str]()
    for row in minutes:
        statuses.update(row["statuses"])
    refused = sum(count for name, count in statuses.items() if name.startswith("hostile"))
    others = sum(statuses.values()) - refused - statuses["200"]
    told = {
        "updates": f"{year['updates']:,}",
        "the process that updates was killed": f"{year['kills']} times",
        "requests": f"{year['asked']:,}",
        "answered with 200": f"{statuses['200']:,}",
        "answered otherwise, or not": f"{others:,}",
        "nonsense, refused": f"{refused:,}",
        "answers compared": f"{year['compared']:,}",
        "wrong": f"{year['wrong']:,}",
        "of a version that was removed meanwhile": f"{year['version_gone']:,}",
        "largest difference": f"{year['largest_difference']:.1e}",
        "tables of changes": f"{year['changes_bytes'] / 1e6:,.1f} MB",
        "rows that were embedded again": f"{year['embedded_bytes'] / 1e6:,.0f} MB",
        "written": f"{year['written_bytes'] / 1e6:,.0f} MB",
        "disk before, after": f"{year['disk_before'] / 1e6:,.0f} MB, "
        f"{year['disk_after'] / 1e6:,.0f} MB",
    }
    lines += ["", "| of the whole hour | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in told.items()]
    return rows.placed(text, "<!-- table: year -->\n", "\n".join(lines) + "\n", "<!-- end -->")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="of the run; by default a new one")
    parser.add_argument("--role", choices=["clients", "updater", "page"], default="clients")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kills", type=int, default=12, help="of the process that updates")
    parser.add_argument("--began", type=float, default=0.0, help="of the updater alone")
    parser.add_argument("--first", type=int, default=0, help="likewise")
    parser.add_argument("--out", type=Path, default=Path("year.jsonl"))
    options = parser.parse_args()
    if options.role == "page":
        write_whole(PAGE, page(PAGE.read_text(), rows.read(RESULTS)))
        return
    if options.role == "updater":
        update(options.folder, options)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        build(folder, options.nodes)
        given = ("--graph", str(folder / "store"), "--map", "none")
        with Service(folder / "run", *given, "--workers", str(options.workers)) as service:
            asyncio.run(live(folder, service, options))


if __name__ == "__main__":
    main()
