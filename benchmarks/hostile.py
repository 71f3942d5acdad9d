"""What strangers can do to the service: a crowd that hangs, floods, and stops at any moment.

usage: python -m benchmarks.hostile crowd [--asks 200] [--out FILE]
       python -m benchmarks.hostile stops [--times 50] [--seed 0] [--out FILE]

`crowd`: 512 connections hang (nothing sent, half a head, no body, half a login), and eight flood
the service with one kind of request each. Beside them one client asks for `/health`, each time on a
connection of its own: milliseconds. Without a crowd and a flood, the same for comparison. `stops`:
the service is started, asked for labels (which it begins to learn), for similar nodes and for
embeddings, and told to stop (SIGTERM) at a moment drawn at random; counted are exit codes, answers,
and lines on stderr that are not its own. Everything stays on this machine's loopback address.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks import rows
from benchmarks.live_service import Service, percentiles

HANGING, HOSTILE = 512, 8
SECONDS, MOST_SECONDS = 2.0, 300.0  # of a flood: before it is measured, and in all
AGAIN = 8.0  # seconds until a connection that hangs is renewed: the service closes it after ten
HEAD = b"%s %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
IDS = {"ids": list(range(1000))}


def post(path: bytes, body: bytes) -> bytes:
    return HEAD % (b"POST", path) + b"content-length: %d\r\n\r\n" % len(body) + body


CROWD = [
    b"",
    b"GET /health HTTP/1.1\r\nhost: loc",
    HEAD % (b"POST", b"/v1/embed") + b"content-length: 4000\r\n\r\n{",
    HEAD % (b"POST", b"/login") + b"content-length: 4000\r\n\r\ntoken=",
]
FLOODS = {
    "nothing": b"",
    "fields of a login": post(b"/login", b"a=1&" * 2_000_000),
    "large JSON": post(b"/v1/embed", b'{"ids": [' + b"0.1, " * 1_600_000 + b"0]}"),
    "many lists": post(b"/v1/embed", b'{"ids": [' + b"[], " * 14_990 + b"0]}"),
    "large answers": post(b"/v1/embed", json.dumps(IDS).encode()),
    "similar nodes": post(b"/v1/neighbors", json.dumps(IDS).encode()),
    "many headers": HEAD % (b"GET", b"/health") + b"a:\r\n" * 90 + b"\r\n",
    "tiny chunks": HEAD % (b"POST", b"/v1/embed")
    + b"transfer-encoding: chunked\r\n\r\n"
    + b"1\r\n0\r\n" * 10_000,
}


def flood(port: int, sent: bytes, hanging: int) -> None:
    """Keeps a crowd hanging, and sends a request again and again on eight connections."""
    crowd: deque[socket.socket] = deque()

    def hang() -> None:
        for number in count():
            with suppress(OSError):
                one = socket.create_connection(("127.0.0.1", port), timeout=1)
                crowd.append(one)
                one.sendall(CROWD[number % len(CROWD)])
            if len(crowd) > hanging:
                crowd.popleft().close()
            if number >= hanging:  # all are renewed before the service closes them
                time.sleep(AGAIN / hanging)

    def pour() -> None:
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as one:
                while True:
                    one.sendall(sent)
                    one.recv(1 << 16)

    works = [hang] * bool(hanging) + [pour] * (HOSTILE if sent else 0)
    for work in works:
        threading.Thread(target=work, daemon=True).start()
    time.sleep(MOST_SECONDS)


@contextmanager
def beset(port: int, sent: bytes, hanging: int) -> Iterator[None]:
    """Lets a crowd hang and, in another process, eight strangers flood the service for a while."""
    strangers = get_context("fork").Process(target=flood, args=(port, sent, hanging), daemon=True)
    strangers.start()
    try:
        time.sleep(SECONDS)
        yield
        if not strangers.is_alive():
            raise SystemExit("the strangers left before the measurement was over; ask less often")
    finally:
        strangers.kill()
        strangers.join()


def crowd(run: Path, asks: int) -> Iterator[dict[str, Any]]:
    """Measures `/health` beside each kind of flood."""
    health = HEAD % (b"GET", b"/health") + b"connection: close\r\n\r\n"
    for name, sent in [("alone", b""), *FLOODS.items()]:
        with Service(run) as service:
            hanging = 0 if name == "alone" else HANGING
            times, refused = [], 0
            with beset(service.port, sent, hanging):
                for _ in range(asks):
                    began = time.perf_counter()
                    refused += service.ask(health, 30) != 200
                    times.append(time.perf_counter() - began)
                    time.sleep(0.005)
            status = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
        yield {
            "what": "crowd",
            "flood": name,
            "hanging": hanging,
            "hostile": HOSTILE if sent else 0,
            "asks": asks,
            "refused": refused,
            **percentiles(times, "ms"),
            "largest_ms": round(max(times) * 1e3, 1),
            "memory_peak": peak,
        }


def stops(run: Path, times: int, seed: int) -> Iterator[dict[str, Any]]:
    """Tells services to stop while they learn and compute."""
    draw, codes = random.Random(seed), Counter[int]()
    answers, foreign, longest = Counter[int](), 0, 0.0
    body = json.dumps(IDS).encode()
    asked = [
        post(b"/v1/predict", body),
        *[post(b"/v1/neighbors", body)] * 4,
        post(b"/v1/embed", body),
    ]
    for _ in range(times):
        with Service(run) as service:
            found: list[int] = []
            threads = [
                threading.Thread(target=lambda *a: a[0].append(a[1].ask(a[2], 60)), args=a)
                for a in ((found, service, sent) for sent in asked)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.1 + draw.random() * 3)
            began = time.perf_counter()
            service.process.send_signal(signal.SIGTERM)
            assert service.process.stderr is not None
            said = service.process.stderr.read().splitlines()
            codes[service.process.wait(60)] += 1
            longest = max(longest, time.perf_counter() - began)
            others = [line for line in said if not line.startswith("serve: ")]
            print(*others, sep="\n", end="\n" * bool(others), file=sys.stderr)
            foreign += len(others)
            for thread in threads:
                thread.join()
            answers.update(found)
    yield {
        "what": "stops",
        "times": times,
        "seed": seed,
        "codes": {str(code): count for code, count in sorted(codes.items())},
        "answers": {str(status): count for status, count in sorted(answers.items())},
        "foreign_lines": foreign,
        "longest_seconds": round(longest, 1),
    }


def _load() -> float:
    return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["crowd", "stops"])
    parser.add_argument("--asks", type=int, default=200)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which they stop")
    parser.add_argument("--out", type=Path, default=Path("hostile.jsonl"))
    options = parser.parse_args()
    before = _load()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "cora"
        command = [sys.executable, "-m", "graphcl", "train", "cora", "--out", str(run), "--quiet"]
        subprocess.run([*command, "--set", "epochs=1", "--device", "cpu"], check=True)
        made = (
            crowd(run, options.asks)
            if options.what == "crowd"
            else stops(run, options.times, options.seed)
        )
        for row in made:
            row["load_before"] = before  # of others; the other one is also that of this program
            row["load"] = _load()
            rows.append(options.out, row | rows.provenance(torch.device("cpu")))
            print(row)


if __name__ == "__main__":
    main()
