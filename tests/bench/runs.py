"""Whole runs through `moesim.run`: routing, prices, batching, engine, measurement.

The clusters decode, kept full until their requests are used up. Both engines play a
short run, since events are dear; set-up is the time of a run of one request. The columns
from the bar on are of a longer run of the array engine, and say where its time goes.
"""

from statistics import median

import moesim
from bench.clusters import CLUSTERS, COUNTS, TOKENS, counts_allowed
from bench.rooms import PARTS, looking
from bench.table import Column
from bench.timing import interleave, ratio, seconds

TITLE = "runs: moesim.run from scenario to result, array against event"
COLUMNS = [
    Column("cluster", "cluster"),
    Column("draw", "draw"),
    Column("equal", "equal"),
    Column("passes", "passes", "d"),
    Column("ratio", "times faster", ".1f"),
    Column("ratio_steady", "without set-up", ".1f"),
    Column("setup_s", "set-up s", ".2f"),
    Column("stretched", "| passes", "d"),
    Column("ms_per_pass", "ms/pass", ".2f"),
    Column("tokens_per_s", "tokens/s", ".0f"),
    Column("gpu_s_per_s", "GPU-s/s", ".1f"),
    Column("outside", "% outside engine", ".0f"),
    *(Column(part, f"% {part}", ".0f") for part in PARTS),
]
LONG = ("dsv3-ep72",)
"""Clusters of the long form: their neighbours say nearly the same."""
BOTH = ("seed-8x32", "dsv3-ep144")
"""Clusters whose routes the default form draws token by token as well."""
STRETCH = {"tokens": 2, "counts": 40}
"""How many times as long the longer run is."""
LOOKS = 400
"""Shares are looked at until there are as many looks."""


def rows(form, clusters=None):
    """Yield a row for each cluster and way to draw routes."""
    if clusters is None:
        clusters = [c for c in CLUSTERS if form.long or c.name not in LONG]
    for cluster in clusters:
        for draw, routing in draws_of(cluster, form).items():
            form.say(f"runs: {cluster.name}, draw {draw}")
            yield {
                "cluster": cluster.name,
                "draw": draw,
                **compared(cluster.scenario(routing=routing), form.rounds),
                **stretched(cluster, routing, STRETCH[draw]),
            }


def draws_of(cluster, form):
    """Return ways to draw routes: counts where scenarios may ask for them."""
    if not counts_allowed():
        return {"tokens": TOKENS}
    both = {"tokens": TOKENS} if form.long or cluster.name in BOTH else {}
    return both | {"counts": COUNTS}


def compared(scenario, rounds):
    """Return how both engines do on one run, and what a run of one request takes."""
    given = {e: scenario.with_({"serving.engine": e}) for e in ("event", "array")}
    given["one"] = given["array"].with_({"workload.num_prompts": 1})
    results = {}

    def turn(name):
        spent, results[name] = seconds(moesim.run, given[name])
        return spent

    turn("one")
    spent = interleave({name: lambda n=name: turn(n) for name in given}, rounds)
    digests = {name: r.manifest["event_digests"] for name, r in results.items()}
    setup = median(spent["one"])
    beyond = {e: [s - setup for s in spent[e]] for e in ("event", "array")}
    return {
        "equal": digests["event"] == digests["array"],
        "passes": len(results["array"].tables.passes),
        "ratio": ratio(spent["event"], spent["array"]),
        "ratio_steady": ratio(beyond["event"], beyond["array"]),
        "setup_s": setup,
    }


def stretched(cluster, routing, stretch, looks=LOOKS):
    """Return what a longer run of the array engine spends its time on, and how much."""
    turns = cluster.turns * stretch
    scenario = cluster.scenario(
        outputs=f"{{type: uniform, min: {turns // 2}, max: {turns + turns // 2}}}",
        routing=routing,
        **{"serving.engine": "array"},
    )
    spent = []
    with looking() as seen:
        while seen.total < looks:
            time, result = seconds(moesim.run, scenario)
            spent.append(time)
    passes, time = result.tables.passes, median(spent)
    outside = 1 - seen.share("engine")
    return {
        "stretched": len(passes),
        "ms_per_pass": 1e3 * time / len(passes),
        "tokens_per_s": float(passes["tokens"].sum()) / time,
        "gpu_s_per_s": float(passes["done_s"].max()) * cluster.gpus / time,
        "outside": 100 * outside,
        "outside_error": 100 * seen.error(outside),
        "looks": seen.total,
        **{part: 100 * seen.share(part) for part in PARTS},
    }
