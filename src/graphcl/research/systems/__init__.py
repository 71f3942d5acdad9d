"""The other systems of the paper's tables and later ones, behind one protocol.

`BASELINES` maps names to them. A file exports one `Baseline`, or several if its paper has variants.
"""

from graphcl.research.systems import (
    bgrl,
    cca_ssg,
    deepwalk,
    dgi,
    dgi_inductive,
    ep_b,
    fastgcn,
    gaan,
    gat,
    gcn,
    grace,
    graphmae,
    graphsage,
    label_propagation,
    untrained,
)
from graphcl.research.systems.protocol import Baseline

BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        untrained.RAW,
        label_propagation.BASELINE,
        deepwalk.BASELINE,
        deepwalk.WITH_FEATURES,
        ep_b.BASELINE,
        dgi.BASELINE,
        gcn.BASELINE,
        gat.BASELINE,
        untrained.RANDOM_ENCODER,
        untrained.PROPAGATION,
        grace.BASELINE,
        bgrl.BASELINE,
        cca_ssg.BASELINE,
        graphmae.BASELINE,
        dgi_inductive.BASELINE,
        graphsage.GCN,
        graphsage.MEAN,
        graphsage.LSTM,
        graphsage.POOL,
        fastgcn.BASELINE,
        gaan.BASELINE,
    )
}
