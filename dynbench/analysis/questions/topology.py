"""Who brings gradients together, all ranks or a server among them, and how each way grows with the workers."""

from __future__ import annotations

from dynbench.analysis.questions import scaling, sync
from dynbench.analysis.questions.base import EVALUATION

QUESTION = scaling.Scaling(
    name="topology",
    description="all-reduce against a parameter server, at equal workers and over more of them; only if named",
    asks=(*sync.QUESTION.asks, *scaling.QUESTION.asks),
    follows=scaling.QUESTION.follows,
    named_only=True,
    loss_drift=0.05,
    metrics=sync.QUESTION.metrics,
    overview=("step_time_ms.mean", "exposed_comm_ms.mean", "bytes_wire.mean", "wait_fraction", *EVALUATION),
    figures=("epochs", "scaling", "time_breakdown", "step_time_distribution"),
    columns=("efficiency",),
    chapters=("topology", "server", "training", "growth", "scaling", "traffic", "profile", "time"),
)
