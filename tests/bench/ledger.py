"""What keeping account of every GPU's memory costs: whole runs with and without it."""

from contextlib import contextmanager

import moesim
from bench.clusters import BY_NAME
from bench.table import Column
from bench.timing import Spread, interleave, ratio, seconds
from moesim.engine.memory.keeper import Keeper

TITLE = "ledger: whole runs with the memory of every GPU, over runs without"
COLUMNS = [
    Column("cluster", "cluster"),
    Column("equal", "equal"),
    Column("ledger", "ledger", ".3f"),
    Column("section", "section memory", ".3f"),
    Column("without", "s without", ".3f"),
]
CLUSTERS = ("seed-8x32", "mixtral-8", "dsv3-ep32")


def rows(form, clusters=CLUSTERS):
    """Yield a row for each cluster."""
    for name in clusters:
        form.say(f"ledger: {name}")
        yield {"cluster": name} | measured(BY_NAME[name].scenario(), form.rounds)


def measured(scenario, rounds):
    """Return a row; equal: the same ticks, whoever keeps account of what."""
    watched = scenario.with_({"memory": {}})
    digests = {}

    def turn(name, given):
        spent, result = seconds(lambda: moesim.run(given))
        digests[name] = result.manifest["event_digests"]
        return spent

    def without():
        with no_account():
            return turn("without", scenario)

    moesim.run(scenario)
    rivals = {
        "without": without,
        "ledger": lambda: turn("ledger", scenario),
        "section": lambda: turn("section", watched),
    }
    spent = interleave(rivals, rounds)
    return {
        "equal": digests["without"] == digests["ledger"] == digests["section"],
        "ledger": ratio(spent["ledger"], spent["without"]),
        "section": ratio(spent["section"], spent["without"]),
        "without": Spread.of(spent["without"]),
    }


@contextmanager
def no_account():
    """Let passes begin and end with nobody looking at memory."""
    start, land = Keeper.start, Keeper.land
    Keeper.start = lambda self, batch: self.instance.admit(batch)
    Keeper.land = lambda self, number: None
    try:
        yield
    finally:
        Keeper.start, Keeper.land = start, land
