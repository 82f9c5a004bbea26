"""Which resource of a run was busiest: what of the time its busiest instance worked.

Axes: ``G`` GPUs, ``C`` port classes.
"""

from typing import Any

import numpy as np

from moesim.cost.binding import expert_bound
from moesim.measure.columns import PARTS, Recorder
from moesim.measure.shared import routed_cells

PORTS = ("NVLink", "NIC")
"""Names of the port classes, the axis ``C``."""
HOST = {"PCIe": "busy", "NVMe": "reading", "host processor": "computing"}
"""Names of what absent experts need, and where it is written down."""


def busiest(recorder: Recorder) -> dict[str, Any]:
    """Return the resource of a run that was busy longest, and for what share of it.

    Of GPUs: attention (with all that runs on a token's own GPU but the LM head), the
    LM head, and experts, called by what binds the run's mean job: compute, or reading
    weights. Of ports: time that bytes pass; fixed latencies are nobody's work. Where
    experts are absent, what brings them in or computes them too. Each counts on the
    GPU or node, and in the direction, where it is most; of equals, the first.

    Returns
    -------
    dict
        ``binding`` and ``binding_frac``; None for a run in which nothing happened.
    """
    if not recorder.span:
        return {"binding": None, "binding_frac": None}
    spent = dict(zip(PARTS, recorder.parts, strict=True))
    mean_job = np.full(recorder.slot_tokens.shape[1:], _tokens_of_a_job(recorder))
    work = {
        "attention": spent["attention"] + recorder.hidden,
        "LM head": spent["lm_head"],
        expert_bound(mean_job, recorder.system): spent["experts"],
    }
    busy = {name: int(on_gpus.max()) for name, on_gpus in work.items()}
    ports = recorder.port_busy.sum(axis=1)
    busy |= {name: int(ports[:, port].max()) for port, name in enumerate(PORTS)}
    if recorder.residency is not None:
        written = recorder.residency.arrays()
        busy |= {name: int(written[key].max()) for name, key in HOST.items()}
    most = max(busy, key=lambda name: busy[name])
    return {"binding": most, "binding_frac": busy[most] / recorder.span}


def _tokens_of_a_job(recorder: Recorder) -> float:
    """Return how many tokens the mean job of a routed expert has on a GPU."""
    waits, tokens = recorder.waits, int(recorder.slot_tokens.sum())
    if recorder.system.fuses:
        waits = waits.only(routed_cells(recorder.system))
    if recorder.residency is not None:
        tokens -= recorder.residency.cpu_tokens
    return tokens / max(int(waits.count.sum()), 1)
