"""One scenario under one policy, run as often as it is to be repeated.

Replication ``i`` of a scenario with seed ``s`` is the run with seed ``s + i``.
"""

import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.metadata import version
from itertools import islice
from time import perf_counter, process_time
from typing import Any

import numpy as np

from moesim.engine.instance import Instance
from moesim.engine.together.alike import lanes_of
from moesim.engine.together.play import play_together
from moesim.measure.balance import Balance
from moesim.measure.binding import busiest
from moesim.measure.columns import Recorder
from moesim.measure.metrics import summarise
from moesim.measure.residency import joined
from moesim.measure.result import Result
from moesim.measure.tabulate import RecordedTables, rank_load, tabulate
from moesim.policy.bundle import Policy
from moesim.scenario.build import Parts, builds
from moesim.scenario.load import Scenario, as_yaml

Progress = Callable[[str, float], None]
"""Told what is being done, and the share of it that is done."""
LIBRARIES = ("moesim", "numpy", "pandas", "scipy", "simpy")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A scenario under one policy; the scenario names it where a file could.

    Parameters
    ----------
    label : str
        What a comparison calls it; empty: its policy's name.
    """

    scenario: Scenario
    policy: Policy
    label: str = ""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.label or self.policy.name

    @property
    def text(self) -> str:
        """The resolved scenario.

        A policy that no file may name stands in it all the same, with a comment, so
        that the text never passes for the run of another policy.
        """
        if self.policy.name == self.scenario.policy["name"]:
            return self.scenario.text()
        data = self.scenario.resolved() | {"policy": {"name": self.policy.name}}
        return f"# run with the policy {self.policy.name}, given by the caller\n" + (
            as_yaml(data)
        )


def silent(_: str, __: float) -> None:
    """Tell nobody of any progress."""


def share(progress: Progress, number: int, count: int) -> Progress:
    """Return a progress that reports one part of `count` parts."""

    def report(label: str, done: float) -> None:
        progress(label, (number + done) / count)

    return report


def replicate(
    candidate: Candidate, progress: Progress, figures: Callable[[Result], Any]
) -> Result:
    """Run a candidate once for each replication and put the runs together."""
    wall, cpu = perf_counter(), process_time()
    recorders: list[Recorder] = []
    tables: list[RecordedTables] = []
    summaries: list[dict[str, Any]] = []
    limits = candidate.scenario.slo.in_ms()
    for number, (parts, recorder) in enumerate(_played(candidate, progress)):
        table = tabulate(recorder, number, limits, parts.serving.kv_blocks)
        recorders.append(recorder)
        tables.append(table)
        summaries.append(summarise(table, _facts(candidate, parts, recorder)))
    return Result(
        tables=RecordedTables.joined(tables),
        summaries=summaries,
        manifest=_manifest(candidate, recorders, (wall, cpu)),
        scenario_text=candidate.text,
        traffic=np.stack([recorder.traffic for recorder in recorders]),
        rank_load=np.stack([rank_load(recorder) for recorder in recorders]),
        figures=figures,
        residency=joined([recorder.residency for recorder in recorders]),
    )


def _played(
    candidate: Candidate, progress: Progress
) -> Iterator[tuple[Parts, Recorder]]:
    """Yield every replication's parts, and what it wrote down.

    As many as may do so advance together; that changes none of them.
    """
    scenario, count = candidate.scenario, candidate.scenario.replications
    made = builds(scenario, range(scenario.seed, scenario.seed + count))
    done = 0
    for first in made:
        group = [first]
        instances = [_instance(candidate, first)]
        size = min(lanes_of(instances[0]), count - done)
        upto = f"{done + 1}-{done + size}" if size > 1 else f"{done + 1}"
        label = f"{candidate.name} {upto}/{count}"
        report = partial(_report, progress, label, (done, size, count))
        report(0.0)
        for parts in islice(made, size - 1):
            group.append(parts)
            instances.append(_instance(candidate, parts))
        yield from zip(group, play_together(instances, report), strict=True)
        done += size


def _instance(candidate: Candidate, parts: Parts) -> Instance:
    instance = Instance(
        parts.system, parts.serving, parts.source, parts.requests, candidate.policy
    )
    instance.recorder.measure_from(candidate.scenario.warmup)
    return instance


def _report(
    progress: Progress, label: str, place: tuple[int, int, int], part: float
) -> None:
    """Tell that a part is done of `size` replications after the first `done`."""
    done, size, count = place
    progress(label, (done + part * size) / count)


def _facts(candidate: Candidate, parts: Parts, recorder: Recorder) -> dict[str, Any]:
    """Return what a record says besides what was measured."""
    scenario, system = candidate.scenario, parts.system
    arrivals = scenario.workload.arrivals
    concurrency = scenario.workload.max_concurrency
    return {
        "backend": "moesim",
        "label": scenario.name,
        "policy": candidate.policy.name,
        "model_outputs": "changed" if candidate.policy.changes_outputs else "unchanged",
        "model_id": system.model.name,
        "gpu": system.topology.gpu.name,
        "nodes": system.topology.nodes,
        "num_gpus": system.topology.gpus,
        "tensor_parallel_size": system.tensor_parallel,
        "data_parallel_size": system.ranks,
        "expert_parallel_size": system.topology.gpus,
        "request_rate": arrivals.get("request_rate"),
        "burstiness": arrivals.get("burstiness", 1.0),
        "max_concurrency": concurrency or None,
        "balancedness_vllm": recorder.balance.vllm,
        "balancedness_sglang": recorder.balance.sglang,
        "rank_imbalance": recorder.balance.imbalance,
        "span_s": recorder.span_s,
        "warmup_s": scenario.warmup,
        "slo_ms": scenario.slo.in_ms(),
        "gaps": recorder.requests.gaps,
        **(recorder.moves.facts() if recorder.moves else {}),
        **_residency(recorder),
        **(recorder.memory.facts() if recorder.memory else {}),
        **({"rejection": recorder.refused} if recorder.refused else {}),
        **_stages(recorder.stages),
        **recorder.shared.facts(),
        **busiest(recorder),
    }


def _residency(recorder: Recorder) -> dict[str, Any]:
    """Return what became of experts that were absent, if any could be."""
    log = recorder.residency
    return log.facts(recorder.span, int(recorder.parts.sum())) if log else {}


def _stages(stages: Balance) -> dict[str, Any]:
    """Return how many joint stages there were, and GPUs' idle work as a share of work.

    There are some in lockstep only. Work is counted in tokens of experts.
    """
    if not stages.count:
        return {}
    return {"stages": stages.count, "stage_imbalance": stages.imbalance}


def _manifest(
    candidate: Candidate, recorders: Sequence[Recorder], began: tuple[float, float]
) -> dict[str, Any]:
    """Return how the result came about; the only place for facts of the wall clock."""
    scenario = candidate.scenario
    return {
        "scenario": scenario.name,
        "policy": candidate.policy.name,
        "seed": scenario.seed,
        "replications": scenario.replications,
        "coupling": scenario.serving.coupling,
        "engine": recorders[0].engine,
        "event_digests": [recorder.digest() for recorder in recorders],
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "host": platform.node(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "argv": list(sys.argv),
        "versions": {name: version(name) for name in LIBRARIES},
        "wall_s": perf_counter() - began[0],
        "cpu_s": process_time() - began[1],
    }
