"""The same passes through every engine: ratios, equality, microseconds.

The passes are the first of a run of each cluster, routed and priced; in the thin one
most GPUs have no token of their own. Lockstep joins
where it gives the same ticks, with one pass in flight.
"""

from bench.clusters import CLUSTERS, THIN, recorded
from bench.plays import Play, Trial
from bench.table import Column
from bench.timing import Spread, interleave, ratio

TITLE = "engines: the same passes, one engine alone"
COLUMNS = [
    Column("cluster", "cluster"),
    Column("policy", "policy"),
    Column("waits", "waits"),
    Column("in_flight", "in flight", "d"),
    Column("engine", "engine"),
    Column("equal", "equal"),
    Column("ratio", "times faster than event", ".1f"),
    Column("ms_per_pass", "ms/pass", ".3f"),
    Column("us_per_barrier", "us/barrier", ".1f"),
    Column("us_per_event", "us/event", ".2f"),
]
DISTINCT = 4
"""Passes recorded of each cluster."""
TRIALS = [
    Trial("fifo"),
    Trial("fifo", True),
    Trial("oldest", True),
    Trial("oldest", True, 4),
    Trial("fifo", True, 1),
]
"""With one kernel a GPU and two passes in flight no queue has two to choose from, so
that an order of service first matters with more."""
THIN_TRIALS = [Trial("fifo", True), Trial("oldest", True, 4)]
LONG_TRIALS = [
    Trial("oldest"),
    *(Trial(policy, True, 4) for policy in ("fifo", "per_layer", "cross_layer")),
]


def rows(form, clusters=(*CLUSTERS, THIN), trials=None):
    """Yield a row for each cluster, trial and engine."""
    for cluster in clusters:
        form.say(f"engines: {cluster.name}, recording passes")
        system, batches = recorded(cluster.scenario(), min(cluster.passes, DISTINCT))
        for trial in trials or trials_of(cluster, form):
            form.say(f"engines: {cluster.name}, {trial}")
            passes = max(cluster.passes, trial.in_flight)
            stage = (system, batches, passes, trial)
            yield from compared(stage, cluster.name, form.rounds)


def trials_of(cluster, form):
    if form.long:
        return TRIALS + LONG_TRIALS
    return THIN_TRIALS if cluster is THIN else TRIALS


def compared(stage, name, rounds):
    """Yield the rows of one cluster and trial: event first."""
    system, _, passes, trial = stage
    engines = ["event", "array"] + ["lockstep"] * (trial.in_flight == 1)
    counted = {engine: Play(engine, *stage) for engine in engines}
    events = {engine: play.step_by_step() for engine, play in counted.items()}
    truth = counted["event"].seen()
    equal = {engine: play.seen() == truth for engine, play in counted.items()}

    def turn(engine):
        play = Play(engine, *stage)
        spent = play.run()
        equal[engine] &= play.seen() == truth
        return spent

    spent = interleave({e: lambda e=e: turn(e) for e in engines}, rounds)
    barriers = passes * (2 * len(system.model.moe_layers) + 1)
    for engine in engines:
        time = Spread.of(spent[engine])
        yield {
            "cluster": name,
            "policy": trial.policy,
            "waits": "on" if trial.waits else "off",
            "in_flight": trial.in_flight,
            "engine": engine,
            "equal": equal[engine],
            "ratio": ratio(spent["event"], spent[engine]),
            "ms_per_pass": time.per(passes).times(1e3).median,
            "us_per_barrier": time.per(barriers).times(1e6).median,
            "us_per_event": time.per(events[engine]).times(1e6).median,
        }
