"""What the smallest steps cost, each on its own."""

from bench.clusters import BY_NAME, instance_of, recorded
from bench.plays import Play, Trial
from bench.table import Column
from bench.timing import Spread, interleave, per_call, seconds
from moesim.cost.price import price
from moesim.engine.clock import FORM, Clock
from moesim.engine.event.server import Job, Server
from moesim.engine.microbatch import quantise
from moesim.measure.columns import Recorder
from worlds import requests_of

TITLE = "micro: one step of each kind"
COLUMNS = [
    Column("step", "step"),
    Column("cluster", "cluster"),
    Column("us", "us", ".2f"),
]
MANY = 20_000
SAMPLES = ("seed-8x32", "dsv3-ep144")


def rows(form, clusters=SAMPLES):
    """Yield a row for each step: all of one cluster take turns."""
    form.say("micro: clock and server")
    steps = {"clock event": clock_event, "timeout": timeout, "server job": server_job}
    yield from timed(steps, "any", form.rounds)
    for name in clusters:
        form.say(f"micro: {name}")
        yield from timed(pass_steps(BY_NAME[name]), name, form.rounds)


def timed(steps, cluster, rounds):
    for turn in steps.values():
        turn()
    for step, spent in interleave(steps, rounds).items():
        us = Spread.of(spent).times(1e6)
        yield {"step": step, "cluster": cluster, "us": us}


def clock_event():
    """Return seconds of one event at the present instant, and its callback."""
    clock, left = Clock(), [MANY]

    def again(_):
        left[0] -= 1
        if left[0]:
            clock.settle(FORM, again)

    clock.settle(FORM, again)
    return seconds(clock.run)[0] / MANY


def timeout():
    """Return seconds of one timeout while 32 are pending."""
    clock, left = Clock(), [MANY]

    def again(_):
        left[0] -= 1
        if left[0] > 0:
            clock.after(1 + left[0] % 7, again)

    for _ in range(32):
        clock.after(1, again)
    return seconds(clock.run)[0] / (MANY + 31)


def server_job():
    """Return seconds of one job of the event engine's server, made and served."""
    clock, left = Clock(), [MANY]
    server = Server(clock, floor=0.0)

    def submit(_):
        left[0] -= 1
        if left[0] > 0:
            job = Job(3, left[0], 0, None)
            job.done = submit
            server.submit(job)

    for _ in range(4):
        submit(None)
    return seconds(clock.run)[0] / MANY


def pass_steps(cluster):
    """Return the steps of one full pass: route and price it, play it, write it down."""
    system, batches = recorded(cluster.scenario(), 4)
    load = batches[-1].load
    cost = price(load, system)
    recorder = Recorder(system, requests_of([0.0], 1, 1))
    sheet = written_down(system, batches)
    assemble, draft = assembly(cluster)
    barriers = 2 * len(system.model.moe_layers) + 1

    def barrier():
        play = Play("array", system, batches, 8, Trial())
        play.recorder.end_pass = lambda _: None
        return play.run() / 8 / barriers

    return {
        "assemble a pass: route, count, price": lambda: per_call(
            lambda: assemble(*draft), 1
        ),
        "price": lambda: per_call(lambda: price(load, system), 20),
        "round prices to ticks": lambda: per_call(lambda: quantise(cost), 20),
        "array engine, one barrier": barrier,
        "end_pass": lambda: per_call(lambda: recorder.end_pass(sheet), 20),
    }


def written_down(system, batches):
    """Return the record of a pass, as the array engine hands it over."""
    play, sheets = Play("array", system, batches, 1, Trial()), []
    play.recorder.end_pass = sheets.append
    play.run()
    return sheets[0]


def assembly(cluster):
    """Return what assembles a cluster's passes, and what it was given for the third."""
    instance, given = instance_of(cluster.scenario()), []
    assemble = instance.assembler.assemble

    def listen(*arguments):
        given.append(arguments)
        return assemble(*arguments)

    instance.assembler.assemble = listen
    while len(given) < 3:
        instance.clock.step()
    return assemble, given[-1]
