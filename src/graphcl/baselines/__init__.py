"""Every other system of the paper's tables, one file each, behind one protocol.

`BASELINES` names them. A file exports one `Baseline` (or several, where a paper has variants).
"""

from graphcl.baselines.dgi_inductive import DGI_INDUCTIVE
from graphcl.baselines.fastgcn import FASTGCN
from graphcl.baselines.gaan import GAAN
from graphcl.baselines.graphsage import (
    GRAPHSAGE_GCN,
    GRAPHSAGE_LSTM,
    GRAPHSAGE_MEAN,
    GRAPHSAGE_POOL,
)
from graphcl.baselines.protocol import Baseline

BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        GRAPHSAGE_GCN,
        GRAPHSAGE_MEAN,
        GRAPHSAGE_LSTM,
        GRAPHSAGE_POOL,
        DGI_INDUCTIVE,
        FASTGCN,
        GAAN,
    )
}
