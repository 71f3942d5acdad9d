"""How long one new node takes beside a graph, and how many requests the service answers.

usage: python -m benchmarks.live node [--nodes 30000 1000000 10000000] [--recipes cora default]
           [--calls 1000] [--folder DIR] [--out FILE]
       python -m benchmarks.live http [--nodes 30000] [--calls 1000] [--out FILE]
       python -m benchmarks.live load [--nodes 30000] [--clients 32] [--seconds 60] [--out FILE]
       python -m benchmarks.live vectors [--nodes 10000000] [--out FILE]
       python -m benchmarks.live page [--check]

`node`: one new node with ten neighbours is embedded by `Live.embed_new`, exactly, with a model of
two layers of 128 (the recipe `cora`) or with the recipe `default`. The graph is that of
`benchmarks.store`: degree 20, 64 features, mapped from a store. Beside it, in the same process:
PyTorch Geometric's two mean layers of the same sizes over the whole grown graph, up to
`--rival-nodes` nodes. The first new nodes are compared with `transform` of the grown graph, up to
`--exact-nodes` nodes. Wall time depends on what else the machine does (`load`, the system's average
of the last minute over its cores); `cpu_ms` is the time that the process itself took.

`http`: the same node through `graphcl serve` on this machine, one request after the other. `load`:
many clients at once for a while; every answer is compared with the right one. Then the same with
the service killed half-way (SIGKILL) and started again at the same port. `vectors`:
embeddings of 128 numbers, mapped from a file, are written by each streaming writer of
`graphcl embed --to`; `private_bytes` is the peak of the process's own memory. `page` writes the
tables of docs/serving.md from the committed rows; with `--check` it compares and writes nothing.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import rows
from benchmarks.store import FEATURES, PeakMemory, build
from graphcl.datasets.synthetic import synthetic_graph
from graphcl.estimator import GraphCL
from graphcl.exporting.vectors import batches, write_vectors
from graphcl.files.atomic import write_whole
from graphcl.graphs.graph import Graph
from graphcl.graphs.growing import grown_graph, new_nodes

CPU = torch.device("cpu")
NEIGHBOURS, DIM, LAYERS = 10, 128, 2
COMPARED, FORWARDS = 3, 3
TITLES = {"http": "one client", "load": "many clients", "killed": "killed and started again"}
PAGE = Path(__file__).parents[1] / "docs/serving.md"
RESULTS = Path(__file__).parent / "results/live.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["node", "http", "load", "vectors", "page"])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, nargs="+", default=[30_000, 1_000_000, 10_000_000])
    parser.add_argument("--recipes", nargs="+", default=["cora", "default"])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rival-nodes", type=int, default=1_000_000)
    parser.add_argument("--exact-nodes", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("live.jsonl"))
    options = parser.parse_args()
    if options.what == "page":
        text = page(PAGE.read_text(), rows.read(RESULTS))
        if options.check:
            raise SystemExit(0 if text == PAGE.read_text() else f"{PAGE} is stale")
        write_whole(PAGE, text)
        return
    if options.what == "vectors":
        for row in streamed(options.nodes[-1], options.folder):
            rows.append(options.out, row | rows.provenance(CPU))
            print(row)
        return
    if options.what != "node":
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for row in through_http(Path(folder), options):
                rows.append(options.out, row | rows.provenance(CPU))
                print(row)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number in options.nodes:
            store = Path(folder) / "store"
            build(store, number)
            graph = Graph.open(store)
            began = time.perf_counter()
            graph.check()
            checked = time.perf_counter() - began
            measured = [
                one_node(graph, recipe, options.calls, exact=number <= options.exact_nodes)
                for recipe in options.recipes
            ]
            # After ours: its threads go on spinning for a while and would disturb them.
            rival = {}
            if number <= options.rival_nodes:
                rival = {"pyg_whole_graph_ms": pyg_milliseconds(graph)}
            for row in measured:
                row |= {"check_seconds": round(checked, 3)} | rival
                rows.append(options.out, row | rows.provenance(CPU))
                print(row)


def model_of(recipe: str) -> GraphCL:
    """Returns a model of the benchmark's sizes; its weights do not matter for the time."""
    own = {} if recipe == "default" else {"dim": DIM, "layers": LAYERS, "feature_scaling": "none"}
    small = synthetic_graph(2000, 8000, FEATURES, 5, seed=0)
    return GraphCL(recipe, **own, epochs=1, device="cpu").fit(small)


def one_node(graph: Graph, recipe: str, calls: int, *, exact: bool) -> dict[str, Any]:
    """Measures `embed_new` of one node at a time."""
    random = np.random.default_rng(1)
    model, number = model_of(recipe), graph.num_nodes
    x = random.standard_normal((calls, FEATURES)).astype(np.float32)
    near = [random.choice(number, NEIGHBOURS, replace=False) for _ in range(calls)]
    live = model.live(graph)
    live.embed_new(x[0], near[0])  # compiles
    wall, cpu = np.empty(calls), np.empty(calls)
    for call in range(calls):
        began, busy = time.perf_counter(), time.process_time()
        live.embed_new(x[call], near[call])
        wall[call], cpu[call] = time.perf_counter() - began, time.process_time() - busy
    row = {
        "what": "one new node",
        "nodes": number,
        "degree": round(len(graph.indices) / number, 1),
        "features": FEATURES,
        "recipe": recipe,
        "dim": model.encoder_.width,
        "layers": LAYERS,
        "neighbours": NEIGHBOURS,
        "calls": calls,
        **percentiles(wall, "ms"),
        **percentiles(cpu, "cpu_ms"),
        "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
    }
    if exact:
        pairs = [(x[i : i + 1], near[i]) for i in range(COMPARED)]
        row["largest_difference"] = max(_difference(model, graph, *one) for one in pairs)
    return row


def _difference(model: GraphCL, graph: Graph, x: Any, near: Any) -> float:
    """Returns how far a new node is from its embedding in the grown graph embedded whole."""
    whole = grown_graph(graph, new_nodes(graph, x, [near]))
    expected = model.transform(whole)[-1]
    return float(np.abs(model.embed_new(x[0], near, graph=graph) - expected).max())


def percentiles(seconds: Any, unit: str) -> dict[str, float]:
    """Returns the median and the 99th percentile in milliseconds."""
    half, high = np.percentile(seconds, [50, 99]) * 1e3
    return {f"p50_{unit}": round(float(half), 3), f"p99_{unit}": round(float(high), 3)}


@torch.no_grad()
def pyg_milliseconds(graph: Graph) -> float:
    """Returns the milliseconds of PyTorch Geometric's layers over all nodes; the best of a few.

    The adjacency is a sparse matrix, for which its layers make no table of messages.
    """
    from torch_geometric.nn import SAGEConv

    layers = [
        SAGEConv(width, DIM, root_weight=False, bias=False) for width in [FEATURES, DIM][:LAYERS]
    ]
    indptr = torch.from_numpy(np.array(graph.indptr, dtype=np.int64))
    indices = torch.from_numpy(np.array(graph.indices, dtype=np.int64))
    size = (graph.num_nodes, graph.num_nodes)
    adjacency = torch.sparse_csr_tensor(indptr, indices, torch.ones(len(indices)), size=size)
    x = torch.from_numpy(np.asarray(graph.x, dtype=np.float32))
    times = []
    for _ in range(FORWARDS):
        began = time.perf_counter()
        h = torch.nn.functional.elu(layers[0](x, adjacency))
        layers[1](h, adjacency)
        times.append(time.perf_counter() - began)
    return round(min(times) * 1e3, 1)


class Service:
    """`graphcl serve` in a process of its own."""

    def __init__(self, run: Path, store: Path, port: int = 0) -> None:
        command = [sys.executable, "-m", "graphcl", "serve", str(run), "--graph", str(store)]
        command += ["--map", "none", "--rate", "0", "--port", str(port)]
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
        return int(found)


def through_http(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Trains a small model, serves it beside a graph and asks for new nodes."""
    number, random = options.nodes[0], np.random.default_rng(1)
    build(folder / "store", number)
    graph, model = Graph.open(folder / "store"), model_of("cora")
    model.save(folder / "run", graph=graph)
    asked = [
        json.dumps(
            {
                "new": [
                    {
                        "features": random.standard_normal(FEATURES).round(4).tolist(),
                        "neighbors": random.choice(number, NEIGHBOURS, replace=False).tolist(),
                    }
                ]
            }
        ).encode()
        for _ in range(100)
    ]
    about = {"nodes": number, "features": FEATURES, "dim": DIM, "neighbours": NEIGHBOURS}
    if options.what == "http":
        service = Service(folder / "run", folder / "store")
        try:
            times = asyncio.run(_one_by_one(service.port, asked, options.calls))
        finally:
            service.stop()
        load = round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
        yield {
            "what": "http",
            **about,
            "calls": options.calls,
            **percentiles(times, "ms"),
            "load": load,
        }
        return
    for killed in (False, True):
        found = _Load(folder, asked, options).measure(killed=killed)
        yield {"what": "killed" if killed else "load", **about, **found}


async def _one_by_one(port: int, asked: list[bytes], calls: int) -> list[float]:
    client, times = Connection(port), []
    for call in range(calls + 20):
        began = time.perf_counter()
        status, _ = await client.ask("POST", "/embed", asked[call % len(asked)])
        assert status == 200
        times.append(time.perf_counter() - began)
    return times[20:]


class _Load:
    """Many clients at once."""

    def __init__(self, folder: Path, asked: list[bytes], options: argparse.Namespace) -> None:
        self._folder, self._asked, self._options = folder, asked, options
        self._service = Service(folder / "run", folder / "store")

    def measure(self, *, killed: bool) -> dict[str, Any]:
        try:
            return asyncio.run(self._measure(killed=killed))
        finally:
            self._service.stop()

    async def _measure(self, *, killed: bool) -> dict[str, Any]:
        port, seconds = self._service.port, self._options.seconds
        first = Connection(port)
        right = [(await first.ask("POST", "/embed", body))[1] for body in self._asked]
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
            again = asyncio.to_thread(Service, folder / "run", folder / "store", port)
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
                status, answer = await client.ask("POST", "/embed", self._asked[turn])
            except (OSError, asyncio.IncompleteReadError):
                found["refused"] += 1
                await asyncio.sleep(0.1)
                continue
            found["errors"] += status != 200
            found["wrong"] += status == 200 and answer != right[turn]
            found["after"] += bool(self._back) and status == 200
            found["times"].append(time.perf_counter() - began)


def streamed(number: int, folder: Path | None) -> Iterator[dict[str, Any]]:
    """Writes many embeddings and watches the memory that it takes beside the mapped ones."""
    random = np.random.default_rng(0)
    for kind in ("arrow", "parquet", "lancedb"):
        with tempfile.TemporaryDirectory(dir=folder) as room:
            file = Path(room) / "z.npy"
            z = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(number, DIM))
            block = random.standard_normal((1 << 16, DIM), dtype=np.float32)
            for start in range(0, number, len(block)):
                z[start : start + len(block)] = block[: number - start]
            z.flush()
            mapped = np.load(file, mmap_mode="r")
            del z, block
            out = Path(room) / ("out.arrow" if kind == "arrow" else "out")
            with PeakMemory() as peak:
                before = private_bytes()
                began = time.perf_counter()
                written = write_vectors(out, kind, batches(mapped, None), dim=DIM)
                seconds = time.perf_counter() - began
            assert written == number
            yield {
                "what": "vectors",
                "to": kind,
                "nodes": number,
                "dim": DIM,
                "vectors_bytes": number * DIM * 4,
                "private_bytes": max(0, peak["RssAnon"] - before),
                "write_seconds": round(seconds, 1),
            }


def private_bytes() -> int:
    """Returns the memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def page(text: str, found: list[Any]) -> str:
    """Returns a page with its tables made from rows; of equal measurements the last counts."""
    keys = ("what", "nodes", "recipe", "to")
    latest = {tuple(row.get(key) for key in keys): row for row in found}
    tables = {
        "node": _node_table([row for (what, *_), row in latest.items() if what == "one new node"]),
        "http": _http_table([row for (what, *_), row in latest.items() if what in TITLES]),
        "vectors": _vectors_table([row for (what, *_), row in latest.items() if what == "vectors"]),
    }
    for name, table in tables.items():
        head, tail = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, _, rest = text.partition(head)
        text = before + head + table + tail + rest.partition(tail)[2]
    return text


def _node_table(found: list[Any]) -> str:
    lines = [
        "| nodes | model | processor, p50 / p99 | wall, p50 / p99 | PyG, all nodes | difference |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(found, key=lambda row: (row["recipe"], row["nodes"])):
        model = "2 × 128" if row["recipe"] != "default" else "`default`, 1,024"
        rival = f"{row['pyg_whole_graph_ms']:,.0f} ms" if "pyg_whole_graph_ms" in row else "–"
        exact = f"{row['largest_difference']:g}" if "largest_difference" in row else "–"
        lines.append(
            f"| {row['nodes']:,} | {model} | {row['p50_cpu_ms']:.1f} / {row['p99_cpu_ms']:.1f} ms "
            f"| {row['p50_ms']:.1f} / {row['p99_ms']:.1f} ms | {rival} | {exact} |"
        )
    return "\n".join(lines) + "\n"


def _http_table(found: list[Any]) -> str:
    lines = [
        "| | clients | requests per second | p50 / p99 | errors | wrong | refused | memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(found, key=lambda row: list(TITLES).index(row["what"])):
        rate = f"{row['per_second']:,.0f}" if "per_second" in row else "–"
        memory = "–"
        if "memory_after" in row:
            memory = f"{row['memory_before'] / 2**20:.0f} → {row['memory_after'] / 2**20:.0f} MiB"
        counts = [str(row.get(key, "–")) for key in ("errors", "wrong", "refused")]
        lines.append(
            f"| {TITLES[row['what']]} | {row.get('clients', 1)} | {rate} | {row['p50_ms']:.1f} / "
            f"{row['p99_ms']:.1f} ms | {' | '.join(counts)} | {memory} |"
        )
    return "\n".join(lines) + "\n"


def _vectors_table(found: list[Any]) -> str:
    lines = ["| `--to` | vectors | size | memory beside them | seconds |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row['to']}` | {row['nodes']:,} × {row['dim']} | {row['vectors_bytes'] / 1e9:.1f} GB "
        f"| {row['private_bytes'] / 1e6:,.0f} MB | {row['write_seconds']:,.0f} |"
        for row in found
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
