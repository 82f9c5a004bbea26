"""How much memory a run of very many requests takes: one process for each.

Run as a program it is that process: it prints one line of JSON.

``python tests/bench/memory.py --requests 10000 [--draw tokens|counts] [--outputs 16]``
"""

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1]))

import moesim
from bench.clusters import BY_NAME, COUNTS, TOKENS, counts_allowed
from bench.table import Column

TITLE = "memory: one run in a process of its own"
COLUMNS = [
    Column("cluster", "cluster"),
    Column("draw", "draw"),
    Column("requests", "requests", "d"),
    Column("tokens", "tokens", "d"),
    Column("passes", "passes", "d"),
    Column("imported_mib", "MiB imported", ".0f"),
    Column("ready_mib", "MiB after 1 request", ".0f"),
    Column("peak_mib", "MiB at most", ".0f"),
    Column("bytes_per_request", "B/request", ".0f"),
    Column("cpu_s", "CPU s", ".1f"),
    Column("tokens_per_s", "tokens/s", ".0f"),
]
CLUSTER = "dsv3-ep144"
REQUESTS = {"tokens": (20_000, 100_000), "counts": (100_000, 1_000_000)}
"""In the default form, and in the long one."""
OUTPUTS = 16
STATUS = Path("/proc/self/status")


def rows(form, outputs=OUTPUTS):
    """Yield one row: with counts where scenarios may ask for them."""
    draw = "counts" if counts_allowed() else "tokens"
    requests = form.requests or REQUESTS[draw][form.long]
    form.say(f"memory: {requests} requests, draw {draw}")
    yield in_child(requests, draw, outputs)


def in_child(requests, draw, outputs, cluster=CLUSTER):
    given = {
        "--requests": requests,
        "--draw": draw,
        "--outputs": outputs,
        "--cluster": cluster,
    }
    words = [str(word) for pair in given.items() for word in pair]
    command = [sys.executable, str(Path(__file__)), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_bytes():
    """Return the most memory this process has held so far.

    A process started from a larger one inherits its `ru_maxrss` on Linux, so the
    kernel's own mark for the new program is read where there is one.
    """
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def scenario_of(cluster, requests, draw, outputs):
    return BY_NAME[cluster].scenario(
        requests,
        f"{{type: geometric, mean: {outputs}, max: {20 * outputs}}}",
        COUNTS if draw == "counts" else TOKENS,
        **{"workload.arrivals": {"type": "poisson", "request_rate": 1e9}},
    )


def measured(cluster, requests, draw, outputs):
    """Return what a run took, beyond what a run of one request takes."""
    scenario = scenario_of(cluster, requests, draw, outputs)
    imported = peak_bytes()
    moesim.run(scenario.with_({"workload.num_prompts": 1}))
    ready, start = peak_bytes(), process_time()
    result = moesim.run(scenario)
    spent, passes = process_time() - start, result.tables.passes
    peak, tokens = peak_bytes(), int(passes["tokens"].sum())
    return {
        "cluster": cluster,
        "draw": draw,
        "requests": requests,
        "tokens": tokens,
        "passes": len(passes),
        "imported_mib": imported / 2**20,
        "ready_mib": ready / 2**20,
        "peak_mib": peak / 2**20,
        "bytes_per_request": (peak - ready) / requests,
        "cpu_s": spent,
        "tokens_per_s": tokens / spent,
    }


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=REQUESTS["tokens"][0])
    parser.add_argument("--draw", choices=("tokens", "counts"), default="tokens")
    parser.add_argument("--outputs", type=int, default=OUTPUTS, help="mean tokens")
    parser.add_argument("--cluster", choices=BY_NAME, default=CLUSTER)
    given = parser.parse_args(arguments)
    row = measured(given.cluster, given.requests, given.draw, given.outputs)
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
