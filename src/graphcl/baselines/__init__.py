"""The other systems of the paper's tables, one file each, behind one protocol.

`BASELINES` maps names to them. A file exports one `Baseline`, or several if its paper has variants.
"""

from graphcl.baselines import (
    deepwalk,
    dgi,
    dgi_inductive,
    ep_b,
    fastgcn,
    gaan,
    gat,
    gcn,
    graphsage,
    label_propagation,
    propagation,
    random_encoder,
    raw,
)
from graphcl.baselines.protocol import Baseline

BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        raw.BASELINE,
        label_propagation.BASELINE,
        deepwalk.BASELINE,
        deepwalk.WITH_FEATURES,
        ep_b.BASELINE,
        dgi.BASELINE,
        gcn.BASELINE,
        gat.BASELINE,
        random_encoder.BASELINE,
        propagation.BASELINE,
        dgi_inductive.BASELINE,
        graphsage.GCN,
        graphsage.MEAN,
        graphsage.LSTM,
        graphsage.POOL,
        fastgcn.BASELINE,
        gaan.BASELINE,
    )
}
