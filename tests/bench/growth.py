"""How time grows with the size of things: exponents fitted on a log-log scale.

An engine with a loop over GPUs has an exponent near 1 in GPUs, one without near 0. The
passes are made up, so that nothing but one size changes.
"""

from statistics import median

import moesim
from bench.clusters import BY_NAME
from bench.plays import Play, Shape, Trial
from bench.table import Column
from bench.timing import fit, interleave, seconds

TITLE = "growth: exponent of processor time (and its standard error)"
COLUMNS = [
    Column("of", "time of"),
    Column("size", "in"),
    Column("fit", "exponent", ".3f"),
    Column("sizes", "sizes"),
    Column("shown", "us, us, ..."),
]
PASSES = 8
GPUS = (8, 16, 32, 64, 128, 256, 512)
SWEEPS = {
    "GPUs": [Shape(gpus=n) for n in GPUS],
    "layers": [Shape(layers=n) for n in (4, 8, 16, 32, 64)],
    "experts per GPU": [Shape(slots=n) for n in (1, 2, 4, 8, 16, 32)],
}
IN_FLIGHT = (1, 2, 4, 8)
REQUESTS = (1_000, 10_000, 30_000, 100_000)
MORE_REQUESTS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
REPEATED = 30_000
"""Above as many requests, one round has to do."""
OUTPUTS = "{type: uniform, min: 2, max: 6}"
ARRIVALS = {
    "requests, at a steady load": {"type": "poisson", "request_rate": 3000},
    "requests, all there at the start": {"type": "batch"},
}


def rows(form, sweeps=SWEEPS, requests=None):
    """Yield a row for each size that is varied."""
    for size, shapes in sweeps.items():
        form.say(f"growth: {size}")
        sizes = [number_of(size, shape) for shape in shapes]
        yield fitted("array, a pass", size, sizes, by_shape(shapes, form.rounds, 0))
        if size == "GPUs":
            spent = by_shape(shapes, form.rounds, 1)
            yield fitted("array and recorder, a pass", size, sizes, spent)
    form.say("growth: passes in flight")
    for policy in ("fifo", "oldest"):
        of = f"array, a pass ({policy})"
        spent = by_flight(policy, form.rounds)
        yield fitted(of, "passes in flight", IN_FLIGHT, spent)
    counts = requests or (MORE_REQUESTS if form.long else REQUESTS)
    for size, arrivals in ARRIVALS.items():
        form.say(f"growth: {size}")
        spent = by_requests(counts, arrivals, form)
        yield fitted("a run of seed-8x32", size, counts, spent)


def number_of(size, shape):
    return {
        "GPUs": shape.gpus,
        "layers": shape.layers,
        "experts per GPU": shape.slots,
    }[size]


def fitted(of, size, sizes, spent):
    """Return a row; `spent` is a list of seconds for each size."""
    middle = [median(turns) for turns in spent]
    return {
        "of": of,
        "size": size,
        "fit": fit(sizes, middle),
        "sizes": ", ".join(f"{number:g}" for number in sizes),
        "shown": ", ".join(f"{us * 1e6:.0f}" for us in middle),
        "seconds": middle,
    }


def by_shape(shapes, rounds, written):
    """Return seconds a pass of the array engine; all shapes take turns.

    Unless `written`, the recorder writes nothing down: what it adds up from GPU to GPU
    is quadratic, whatever the engine.
    """
    made = [(shape.system(), shape.batches()) for shape in shapes]

    def turn(number):
        play = Play("array", *made[number], PASSES, Trial(waits=bool(written)))
        if not written:
            play.recorder.end_pass = lambda _: None
        return play.run() / PASSES

    turns = {number: lambda n=number: turn(n) for number in range(len(shapes))}
    return list(interleave(turns, rounds).values())


def by_flight(policy, rounds):
    """Return seconds a pass of the array engine with more and more in flight."""
    shape = Shape()
    made = shape.system(), shape.batches()

    def turn(count):
        play = Play("array", *made, 2 * PASSES, Trial(policy, in_flight=count))
        play.recorder.end_pass = lambda _: None
        return play.run() / 2 / PASSES

    return list(
        interleave({n: lambda n=n: turn(n) for n in IN_FLIGHT}, rounds).values()
    )


def by_requests(counts, arrivals, form, cluster=BY_NAME["seed-8x32"], outputs=OUTPUTS):
    """Return seconds of whole runs beyond a run of one request, which is set-up.

    Runs of very many requests have fewer turns.
    """
    changes = {"workload.arrivals": arrivals, "workload.max_concurrency": 0}
    spent = {count: [] for count in (1, *counts)}
    moesim.run(cluster.scenario(1, outputs, **changes))
    for number in range(form.rounds):
        for count, turns in spent.items():
            if not number or count <= REPEATED:
                form.say(f"growth: {count} requests, round {number + 1}")
                scenario = cluster.scenario(count, outputs, **changes)
                turns.append(seconds(moesim.run, scenario)[0])
    setup = median(spent.pop(1))
    return [[time - setup for time in turns] for turns in spent.values()]
