"""Sixteen replications in one call against sixteen runs one after another."""

import moesim
from bench.clusters import BY_NAME
from bench.table import Column
from bench.timing import Spread, interleave, ratio, seconds

TITLE = "replications: seed-8x32, `run(replications=n)` against n runs of one"
COLUMNS = [
    Column("policy", "policy"),
    Column("coupling", "coupling"),
    Column("count", "n", "d"),
    Column("equal", "equal"),
    Column("ratio", "times faster", ".2f"),
    Column("together", "s together", ".3f"),
    Column("apart", "s apart", ".3f"),
]
OUTPUTS = "{type: uniform, min: 2, max: 14}"
TRIALS = (("fifo", "queued"), ("oldest", "queued"), ("fifo", "lockstep"))


def rows(form, count=16, trials=TRIALS):
    """Yield a row for each policy and coupling."""
    for policy, coupling in trials:
        form.say(f"replications: {policy}, {coupling}")
        scenario = BY_NAME["seed-8x32"].scenario(
            outputs=OUTPUTS, policy=policy, **{"serving.coupling": coupling}
        )
        yield {"policy": policy, "coupling": coupling, "count": count} | measured(
            scenario, count, form.rounds
        )


def measured(scenario, count, rounds):
    """Return a row; equal: every replication has the digest of its own single run."""
    digests = {}

    def together():
        spent, result = seconds(lambda: moesim.run(scenario, replications=count))
        digests["together"] = list(result.manifest["event_digests"])
        return spent

    def apart():
        seeds = range(scenario.seed, scenario.seed + count)
        spent, results = seconds(lambda: [moesim.run(scenario, seed=s) for s in seeds])
        digests["apart"] = [r.manifest["event_digests"][0] for r in results]
        return spent

    moesim.run(scenario)
    spent = interleave({"together": together, "apart": apart}, rounds)
    return {
        "equal": digests["together"] == digests["apart"],
        "ratio": ratio(spent["apart"], spent["together"]),
        **{name: Spread.of(turns) for name, turns in spent.items()},
    }
