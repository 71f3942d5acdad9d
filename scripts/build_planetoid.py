"""Builds the bundled Cora, Citeseer and Pubmed from their raw files.

usage: python scripts/build_planetoid.py RAW_FOLDER

RAW_FOLDER holds `cora/` (cora.content, cora.cites, public_split.csv), `citeseer/` and `pubmed/`
(ind.NAME.* of the Planetoid distribution). The output is byte-for-byte reproducible.
"""

import sys
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np

from graphcl.datasets.planetoid import read_cora, read_planetoid
from graphcl.graphs.graph import Graph

BUNDLED = Path(__file__).parents[1] / "src/graphcl/datasets/bundled"


def build(name: str, raw: Path) -> Path:
    """Writes one bundled graph: each edge once, features as CSR, masks as node numbers."""
    arrays = read_cora(raw / name) if name == "cora" else read_planetoid(raw / name, name)
    graph = Graph.from_edge_index(name=name, **arrays)
    edges = graph.edge_index()
    binary = bool((graph.x.data == 1).all())
    parts = {
        "edge_index": edges[:, edges[0] < edges[1]].astype(np.int32),
        "x_indptr": graph.x.indptr.astype(np.int32),
        "x_indices": graph.x.indices.astype(np.int16),
        "x_data": graph.x.data.astype(np.uint8 if binary else np.float32),
        "x_shape": np.array(graph.x.shape, dtype=np.int64),
        "y": graph.y.astype(np.int8),
        **{
            mask: np.flatnonzero(getattr(graph, mask)).astype(np.int32)
            for mask in ("train_mask", "val_mask", "test_mask")
        },
    }
    path = BUNDLED / f"{name}.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for key, array in parts.items():
            buffer = BytesIO()
            np.save(buffer, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, buffer.getvalue())
    print(f"{path.name}: {graph}, {path.stat().st_size:,} bytes")
    return path


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for dataset in ("cora", "citeseer", "pubmed"):
        build(dataset, Path(sys.argv[1]))
