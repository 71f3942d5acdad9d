"""Runs a command as several hosts on one machine: networks, memory and wires of their own.

usage: python -m benchmarks.hosts --hosts 4 [--memory 1.5G] [--rate 1gbit] [--seconds 600]
           [--fault kill] [--fault down:5] [--fault stop:10] [--between 5:30] [--restarts 3]
           [--logs DIR] [--out ROWS.jsonl] -- graphcl embed RUN PARTS --out SHARDS

Host r is a network namespace with the address 10.77.0.(r + 1), joined to the others by a veth pair
and a bridge in a namespace of its own; nothing outside can be reached from it. Its processes are in
a control group with the memory limit, which counts mapped files too. `--rate` limits what a host
sends and what it receives, by `tc … tbf`. The command finds RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME in its environment, and `{rank}`
in its words is replaced. Faults come at random moments of `--between` after the start, on random
hosts: `kill` sends SIGKILL to a process that has started no other, `down:N` takes the link away for
N seconds, `stop:N` stops all processes of the host for N seconds. With `--restarts`, a host whose
command failed makes all of them start again, as a cluster's scheduler would.

It needs root, `ip` and `tc` (Debian: iproute2) and control groups, of version 1 or 2. Namespaces
and groups are removed at the end, however it ends. The row says what each host did: its exit code,
its peak memory (`group_bytes` with mapped files, `anonymous_bytes` without), and what it sent.
"""

import argparse
import json
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.namespaces import SUBNET, TICK, WIRE, Host, hosts, kill, said, why_not

PORT = 29500
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass
class Fault:
    """Something that happens to a host: when, what, and for how long."""

    kind: str
    seconds: float
    moment: float
    host: int
    told: dict[str, Any] = field(default_factory=dict)


def run_hosts(
    command: Sequence[str],
    count: int,
    *,
    memory: int | None = None,
    rate: str = "",
    seconds: float = 600,
    faults: Sequence[str] = (),
    between: tuple[float, float] = (5, 30),
    restarts: int = 0,
    seed: int = 0,
    logs: Path | None = None,
    environment: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Runs a command on every host, and returns what each of them did.

    Args:
        command: its words; `{rank}` in them is replaced.
        count: number of hosts.
        memory: the limit of each in bytes.
        rate: of each wire, as `tc` takes it: ``1gbit``.
        seconds: after so many everything is ended, and `timed_out` is true.
        faults: ``kill``, ``down:SECONDS`` or ``stop:SECONDS``.
        between: when they come, in seconds after the start.
        restarts: how often all commands start again after one failed.
        seed: decides moments and hosts.
        logs: a folder for what the commands say.
        environment: variables for the commands.
    """
    draw = random.Random(seed)
    planned = [_fault(text, draw, between, count) for text in faults]
    given = {"WORLD_SIZE": str(count), "MASTER_ADDR": f"{SUBNET}.1", "MASTER_PORT": str(PORT)}
    given |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": WIRE}
    with tempfile.TemporaryDirectory() as spare, hosts(count, memory=memory, rate=rate) as made:
        folder = logs or Path(spare)
        folder.mkdir(parents=True, exist_ok=True)
        began, attempts, timed_out = time.perf_counter(), 0, False
        while True:
            for host in made:
                variables = given | {"GRAPHCL_ATTEMPT": str(attempts)} | (environment or {})
                host.start(command, variables, folder / f"host-{host.rank}.log")
            attempts += 1
            timed_out = not _watch(made, planned, began, seconds, alone=restarts >= attempts)
            failed = any(host.code() != 0 for host in made)
            if not failed or timed_out or attempts > restarts:
                break
            for host in made:
                host.end()
        took = time.perf_counter() - began
        codes = [host.code() for host in made]
        each = [
            {
                "rank": host.rank,
                "code": code,
                "group_bytes": host.group.peak(),
                "anonymous_bytes": host.anonymous,
                "out_of_memory": host.group.killed(),
                **host.wire(),
            }
            for host, code in zip(made, codes, strict=True)
        ]
        output = [(folder / f"host-{host.rank}.log").read_text(errors="replace") for host in made]
    about = {"hosts": count, "memory_limit": memory, "rate": rate or None, "attempts": attempts}
    happened = [{"kind": one.kind, "host": one.host, **one.told} for one in planned if one.told]
    about |= {"seconds": round(took, 2), "timed_out": timed_out, "faults": happened}
    return about | {"each": each, "output": [text[-4000:] for text in output]}


def _watch(
    made: list[Host], planned: list[Fault], began: float, seconds: float, *, alone: bool
) -> bool:
    """Waits for all commands, and lets faults happen; returns False if the time is over.

    With `alone`, one command that failed ends the wait: all will start again.
    """
    undo: list[tuple[float, Host, Fault]] = []
    while True:
        now = time.perf_counter() - began
        for host in made:
            host.watch()
        for fault in planned:
            if not fault.told and now >= fault.moment:
                host = made[fault.host]
                fault.told = {"at": round(now, 2), **_strike(host, fault)}
                if fault.kind != "kill":
                    undo.append((now + fault.seconds, host, fault))
        for entry in [one for one in undo if one[0] <= now]:
            undo.remove(entry)
            _mend(entry[1], entry[2])
        codes = [host.code() for host in made]
        ended = all(code is not None for code in codes)
        if ended or (alone and any(code not in (None, 0) for code in codes)):
            for _, host, fault in undo:
                _mend(host, fault)
            return True
        if now > seconds:
            return False
        time.sleep(TICK)


def _strike(host: Host, fault: Fault) -> dict[str, Any]:
    if fault.kind == "kill":
        pid = host.leaf()
        if pid is not None:
            kill(pid, signal.SIGKILL)
        return {"hit": pid is not None}
    if fault.kind == "down":
        said("ip", "-n", host.space, "link", "set", WIRE, "down")
    else:
        host.signal(signal.SIGSTOP)
    return {"seconds": fault.seconds}


def _mend(host: Host, fault: Fault) -> None:
    if fault.kind == "down":
        said("ip", "-n", host.space, "link", "set", WIRE, "up")
    elif fault.kind == "stop":
        host.signal(signal.SIGCONT)


def _fault(text: str, draw: random.Random, between: tuple[float, float], count: int) -> Fault:
    kind, _, length = text.partition(":")
    if kind not in ("kill", "down", "stop") or (kind == "kill") == bool(length):
        raise SystemExit(f"hosts: --fault must be kill, down:SECONDS or stop:SECONDS; got {text!r}")
    return Fault(kind, float(length or 0), draw.uniform(*between), draw.randrange(count))


def memory_bytes(text: str) -> int:
    """Returns the bytes of ``1.5G``."""
    found = re.fullmatch(r"([\d.]+)([KMG]?)", text)
    if found is None:
        raise SystemExit(f"hosts: --memory must be a number with K, M or G; got {text!r}")
    return int(float(found[1]) * UNITS[found[2]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--memory", help="limit of a host: 1.5G")
    parser.add_argument("--rate", default="", help="of a wire, as tc takes it: 1gbit")
    parser.add_argument("--seconds", type=float, default=600, help="the most that it may take")
    parser.add_argument("--fault", action="append", default=[], help="kill, down:N or stop:N")
    parser.add_argument("--between", default="5:30", help="when faults come, in seconds")
    parser.add_argument("--restarts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    why = why_not()
    if why:
        raise SystemExit(f"hosts: {why}")
    words = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not words:
        raise SystemExit("hosts: which command? Write it after --")
    begin, _, end = given.between.partition(":")
    row = run_hosts(
        words,
        given.hosts,
        memory=memory_bytes(given.memory) if given.memory else None,
        rate=given.rate,
        seconds=given.seconds,
        faults=given.fault,
        between=(float(begin), float(end)),
        restarts=given.restarts,
        seed=given.seed,
        logs=given.logs,
    )
    output = row.pop("output")
    failed = [one["rank"] for one in row["each"] if one["code"] != 0]
    for rank in failed:
        print(f"--- host {rank} ---\n{output[rank]}", file=sys.stderr)
    print(json.dumps(row, indent=1))
    if given.out is not None:
        from benchmarks.rows import append

        append(given.out, {"benchmark": "hosts", "command": " ".join(words), **row})
    raise SystemExit(1 if failed or row["timed_out"] else 0)


if __name__ == "__main__":
    main()
