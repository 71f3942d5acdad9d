"""Every other system of the paper's tables, one file each, behind one protocol.

`BASELINES` names them. A file exports one `Baseline` (or several, where a paper has variants).
"""

from graphcl.baselines import dgi_inductive, fastgcn, gaan, graphsage
from graphcl.baselines.protocol import Baseline

BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        dgi_inductive.BASELINE,
        graphsage.GCN,
        graphsage.MEAN,
        graphsage.LSTM,
        graphsage.POOL,
        fastgcn.BASELINE,
        gaan.BASELINE,
    )
}
