"""What drawing the experts of a token costs, for every source of routing."""

from functools import partial
from itertools import product
from tempfile import TemporaryDirectory

import numpy as np

from bench.table import Column
from bench.timing import Spread, interleave, per_call
from moesim.errors import InputError
from moesim.routing.catalogue import SOURCES
from moesim.routing.source import TokenKeys

TITLE = "routing: top 8 of 256 experts, 58 layers; group-limited: 4 of 8 groups"
COLUMNS = [
    Column("source", "source"),
    Column("groups", "groups"),
    Column("ns", "ns per (token, layer)", ".1f"),
]
LAYERS, EXPERTS, TOP_K, TOKENS = 58, 256, 8, 2048
GROUPS = {"none": (1, 1), "4 of 8": (8, 4)}
SEQUENCES = 16


def rows(form, tokens=TOKENS, layers=LAYERS):
    """Yield a row for each source, all of which take turns."""
    with TemporaryDirectory() as folder:
        rivals = {}
        for name, groups in product(SOURCES, GROUPS):
            form.say(f"routing: building {name}, groups {groups}")
            try:
                source = made(name, GROUPS[groups], folder, (tokens, layers))
            except (InputError, TypeError) as error:
                form.say(f"routing: {name}, groups {groups}, cannot be built: {error}")
                continue
            rivals[name, groups] = partial(cost, source, keys_of(tokens))
        for turn in rivals.values():
            turn()
        form.say("routing: drawing")
        for (name, groups), spent in interleave(rivals, form.rounds).items():
            yield {
                "source": name,
                "groups": groups,
                "ns": Spread.of(spent).per(tokens * layers).times(1e9),
            }


def cost(source, keys):
    return per_call(lambda: source.route(keys), 1)


def made(name, groups, folder, size):
    """Return a source with its defaults; a log has no groups to be limited to."""
    given = {
        "layers": size[1],
        "experts": EXPERTS,
        "top_k": TOP_K,
        "groups": groups[0],
        "top_groups": groups[1],
    }
    if name == "rush_hour":
        given["hot"] = tuple((layer, layer) for layer in range(size[1]))
    if name == "log":
        given["path"] = written_log(folder, *size)
    return SOURCES[name](**given)


def written_log(folder, tokens, layers):
    """Return the path of a log with as many tokens."""
    rng = np.random.default_rng(1)
    base = np.tile(np.arange(EXPERTS, dtype=np.uint8), (layers, 1))
    few = [rng.permuted(base, axis=1)[:, :TOP_K] for _ in range(64)]
    ids = np.stack(few)[rng.integers(64, size=tokens)]
    path = f"{folder}/log.npz"
    np.savez(path, expert_ids=ids, seq_lens=np.full(SEQUENCES, tokens // SEQUENCES))
    return path


def keys_of(tokens):
    """Return the tokens of some sequences."""
    number, length = np.arange(tokens), tokens // SEQUENCES
    return TokenKeys(number // length, number % 4, number % length)
