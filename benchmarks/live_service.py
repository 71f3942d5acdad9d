"""The service of `benchmarks.live` in a process of its own, and clients that ask it."""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np


def percentiles(seconds: Any, unit: str) -> dict[str, float]:
    """Returns the median and the 99th percentile in milliseconds."""
    half, high = np.percentile(seconds, [50, 99]) * 1e3
    return {f"p50_{unit}": round(float(half), 3), f"p99_{unit}": round(float(high), 3)}


class Service:
    """`graphcl serve` in a process of its own."""

    def __init__(self, run: Path, *options: str, port: int = 0) -> None:
        command = [
            sys.executable,
            "-m",
            "graphcl",
            "serve",
            str(run),
            "--rate",
            "0",
            "--log",
            "none",
        ]
        command += [*options, "--port", str(port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "http://" in line:
                self.port = int(line.split(" on ")[1].split()[0].rsplit(":", 1)[1])
                return
        raise SystemExit("the service did not start")

    def stop(self) -> None:
        """Kills it."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, sent: bytes, seconds: float) -> int:
        """Sends bytes, and returns the status of the answer; 0 where there was none."""
        place, errors = ("127.0.0.1", self.port), (OSError, IndexError, ValueError)
        with suppress(*errors), socket.create_connection(place, timeout=seconds) as one:
            one.sendall(sent)
            return int(one.recv(1 << 16).split()[1])
        return 0


class Connection:
    """A client that keeps its connection, as cheap as can be: it shares the cores."""

    def __init__(self, port: int) -> None:
        self._port, self._streams = port, None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Returns the status and the body of an answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\n\r\n"
        try:
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
            return int(answer.split()[1]), await reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            self._streams = None
            raise

    async def memory(self) -> int:
        """Returns the bytes that the service holds."""
        _, text = await self.ask("GET", "/metrics")
        found = text.decode().split("\ngraphcl_memory_bytes ")[1].split()[0]
        return int(float(found))


async def one_by_one(port: int, asked: list[bytes], calls: int) -> list[float]:
    """Returns the seconds of each of many requests, one after the other."""
    client, times = Connection(port), []
    for call in range(calls + 20):
        began = time.perf_counter()
        status, _ = await client.ask("POST", "/v1/embed", asked[call % len(asked)])
        assert status == 200
        times.append(time.perf_counter() - began)
    return times[20:]


class Load:
    """Many clients at once."""

    def __init__(self, folder: Path, asked: list[bytes], options: argparse.Namespace) -> None:
        self._folder, self._asked, self._options = folder, asked, options
        self._service = Service(folder / "run", "--graph", str(folder / "store"), "--map", "none")

    def measure(self, *, killed: bool) -> dict[str, Any]:
        """Returns a row; with `killed` the service is killed half-way and started again."""
        try:
            return asyncio.run(self._measure(killed=killed))
        finally:
            self._service.stop()

    async def _measure(self, *, killed: bool) -> dict[str, Any]:
        port, seconds = self._service.port, self._options.seconds
        first = Connection(port)
        right = [(await first.ask("POST", "/v1/embed", body))[1] for body in self._asked]
        memory = await first.memory()
        began = time.perf_counter()
        found: dict[str, Any] = {"times": [], "wrong": 0, "errors": 0, "refused": 0, "after": 0}
        self._back = 0.0
        tasks = [
            asyncio.create_task(self._client(port, number, began + seconds, right, found))
            for number in range(self._options.clients)
        ]
        if killed:
            await asyncio.sleep(seconds / 2)
            self._service.stop()
            folder = self._folder
            options = ("--graph", str(folder / "store"), "--map", "none")
            again = asyncio.to_thread(Service, folder / "run", *options, port=port)
            self._service = await again
            self._back = time.perf_counter()
        await asyncio.gather(*tasks)
        times = found.pop("times")
        row = {
            "clients": self._options.clients,
            "seconds": seconds,
            "requests": len(times),
            "per_second": round(len(times) / seconds, 1),
            **percentiles(times, "ms"),
            **found,
            "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
        }
        if not killed:
            row |= {"memory_before": memory, "memory_after": await Connection(port).memory()}
        return row

    async def _client(
        self, port: int, number: int, end: float, right: list[bytes], found: dict[str, Any]
    ) -> None:
        client, turn = Connection(port), number
        while time.perf_counter() < end:
            turn = (turn + 1) % len(self._asked)
            began = time.perf_counter()
            try:
                status, answer = await client.ask("POST", "/v1/embed", self._asked[turn])
            except (OSError, asyncio.IncompleteReadError):
                found["refused"] += 1
                await asyncio.sleep(0.1)
                continue
            found["errors"] += status != 200
            found["wrong"] += status == 200 and answer != right[turn]
            found["after"] += bool(self._back) and status == 200
            found["times"].append(time.perf_counter() - began)
