"""All-to-all that grows faster than the tokens it carries.

Axes: ``N`` passes.
"""

import numpy as np

from moesim.diagnose.symptom import Record, symptom
from moesim.measure.result import Result
from moesim.types import Floats

STEEP = 1.1
"""Exponent of all-to-all time over tokens above which it grows faster than they do."""
ENOUGH = 20
"""Passes, and a factor of 2 between their tokens, that an exponent needs."""


def exchange(result: Result, before: Result | None) -> Record:
    """Look for all-to-all that grows faster than the tokens it carries."""
    name = "All-to-all grows faster than load"
    steep, evidence = _steep(result, before)
    evidence += _ports(result)
    if steep is None:
        text = (
            "Passes are too few or too alike to tell; give a run of lighter load, too."
        )
        return symptom(name, text, evidence=evidence)
    if not steep:
        return symptom(
            name, found=False, text="It grows no faster than load.", evidence=evidence
        )
    busy = _busiest(result)
    cause = (
        f"The port of GPU {busy[0]} ({busy[1]}) carries {busy[3]:.2f} times the mean: "
        "skew."
        if busy[3] > 1.2
        else f"Ports are evenly loaded, {busy[2]:.0%} of the time at most: micro-batches "
        "in flight wait for each other's, and for the slowest sender."
    )
    return symptom(
        name,
        found=True,
        text=cause,
        evidence=evidence,
        next="moesim links --nodes "
        f"{result.summary['nodes']} --gpus-per-node "
        f"{result.summary['num_gpus'] // result.summary['nodes']}",
    )


def _steep(result: Result, before: Result | None) -> tuple[bool | None, list[str]]:
    """Return whether time grows faster than tokens, if that can be told, and figures."""
    tokens, seconds = _exchanged(result)
    slope = exponent(tokens, seconds)
    evidence, steep = [], None
    if slope is not None:
        steep = slope > STEEP
        evidence.append(f"over passes, time goes as tokens to the power of {slope:.2f}")
    if before is not None:
        was_tokens, was_seconds = _exchanged(before)
        more = tokens.mean() / max(was_tokens.mean(), 1e-300)
        longer = seconds.mean() / max(was_seconds.mean(), 1e-300)
        evidence.append(
            f"tokens of a pass {more:.2f} times, all-to-all {longer:.2f} times the "
            "first run's"
        )
        steep = bool(steep) or bool(longer > max(more, 1.0) * STEEP)
    return steep, evidence


def _exchanged(result: Result) -> tuple[Floats, Floats]:
    passes = result.passes
    seconds = passes["dispatch_s"] + passes["combine_s"]
    tokens = passes["tokens"] + passes["padding_tokens"]
    return tokens.to_numpy(float), seconds.to_numpy(float)


def exponent(load: Floats, time: Floats) -> float | None:
    """Return the power of load that time goes with, by least squares of logarithms.

    None for few points, or loads that are too alike.

    >>> load = np.arange(1.0, 40)
    >>> round(exponent(load, 3 * load**1.5), 6)
    1.5
    """
    good = (load > 0) & (time > 0)
    x, y = np.log(load[good]), np.log(time[good])
    if len(x) < ENOUGH or np.ptp(np.quantile(x, [0.1, 0.9])) < np.log(2):
        return None
    x = x - x.mean()
    return float((x * y).sum() / (x * x).sum())


def _busiest(result: Result) -> tuple[int, str, float, float]:
    """Return the port busy longest: its GPU, class, share of time, and over the mean."""
    links = result.links
    total = links.groupby(["port", "direction", "gpu"])["busy_s"].sum().unstack()
    busy = total.to_numpy(float)
    row, gpu = np.unravel_index(int(busy.argmax()), busy.shape)
    port, direction = total.index.to_list()[int(row)]
    span = float(result.gpus.groupby("replication")["span_s"].max().sum())
    most, mean = float(busy[row, gpu]), max(float(busy[row].mean()), 1e-300)
    return int(gpu), f"{port}, {direction}", most / max(span, 1e-300), most / mean


def _ports(result: Result) -> list[str]:
    gpu, port, share, ratio = _busiest(result)
    return [
        f"busiest port: GPU {gpu} ({port}), busy {share:.1%} of the time, {ratio:.2f} "
        "times the mean of its kind"
    ]
