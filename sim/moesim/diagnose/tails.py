"""Tails that got worse, and experts that are slow because they are seldom used."""

from shlex import quote

import numpy as np

from moesim.diagnose.symptom import Record, symptom
from moesim.measure.result import Result

WORSE = 0.02
FIRST, SLOW = 0.05, 1.5
"""The first passes, and how much slower than later ones they must be."""
COLD, COSTLY, SHARE = 0.25, 3.0, 0.1
"""The coldest experts; times the hottest's cost a token; share of all experts' time."""


def tail(result: Result, before: Result | None) -> Record:
    """Look for a tail that a change of schedule made longer."""
    name = "Tail worse after a change of schedule"
    if before is None:
        text = (
            "One run cannot tell: give the run before, too (--run BEFORE --run AFTER)."
        )
        return symptom(name, text)
    ratios = {}
    for key in ("mean_ttft_ms", "p99_ttft_ms", "mean_e2el_ms", "p99_e2el_ms"):
        was, now = before.summary.get(key), result.summary.get(key)
        if was and now:
            ratios[key] = now / was - 1
    evidence = [f"{key.removesuffix('_ms')}: {gap:+.1%}" for key, gap in ratios.items()]
    worse = [key for key in ratios if key.startswith("p99") and ratios[key] > WORSE]
    if not worse:
        return symptom(name, found=False, text="No tail is worse.", evidence=evidence)
    policies = [run.summary["policy"] for run in (before, result)]
    cause, facts = _waits(before, result)
    seeds = [len(run.summaries) for run in (before, result)]
    if min(seeds) < 8:
        facts.append(f"runs of each: {min(seeds)}, too few to rule out chance")
    scenario = quote(str(result.manifest.get("scenario", "SCENARIO")))
    return symptom(
        name,
        found=True,
        text=f"{', '.join(k.removesuffix('_ms') for k in worse)} grew from {policies[0]} "
        f"to {policies[1]}. {cause}",
        evidence=[*evidence, *facts],
        next=f"moesim compare SCENARIO --policies {','.join(dict.fromkeys(policies))}"
        f"   # the scenario of {scenario}",
    )


def _waits(before: Result, result: Result) -> tuple[str, list[str]]:
    """Return where the tail's time went, by what grew most."""
    grown, facts = {}, []
    for key, words in (
        ("p99_queue_ms", "requests wait longer before they start"),
        ("max_expert_wait_us", "some expert's jobs are passed over for longer"),
        ("queue_frac", "passes spend more of their time in GPU queues"),
        ("straggler_frac", "passes spend more of their time waiting for slow GPUs"),
    ):
        was, now = before.summary.get(key), result.summary.get(key)
        if was and now is not None:
            grown[words] = now / was
            facts.append(f"{key}: {was:.4g} -> {now:.4g}")
    if not grown or max(grown.values()) <= 1 + WORSE:
        return "None of the waits that are told apart grew.", facts
    most = max(grown, key=lambda words: grown[words])
    return f"The cause: {most} ({grown[most]:.2f} times).", facts


def cold(result: Result) -> Record:
    """Look for the cost of experts that are seldom used, and of first uses."""
    name = "Slow first use of cold experts"
    start, cost = _start(result), _cold_cost(result)
    evidence = [*_cold_figures(start, cost), _fetched(result)]
    if start is None and cost is None:
        return symptom(name, "Too few passes to tell.", evidence=evidence)
    slow_start = start is not None and start > SLOW
    costly = cost is not None and cost[0] > COSTLY and cost[1] > SHARE
    if not (slow_start or costly):
        return symptom(
            name,
            found=False,
            text="Neither first passes nor cold experts cost much.",
            evidence=evidence,
        )
    why = (
        "Every use of a cold expert reads all its weights for few tokens; larger passes "
        "share that."
        if costly
        else "The first passes are slower than later ones of their size."
    )
    return symptom(
        name,
        found=True,
        text=why,
        evidence=evidence,
        next="moesim compare SCENARIO --variant 'now: serving.max_in_flight=1' --variant "
        "'larger: serving.max_num_batched_tokens=8192'",
    )


def _cold_figures(
    start: float | None, cost: tuple[float, float, float] | None
) -> list[str]:
    evidence = []
    if start is not None:
        evidence.append(
            f"experts' time in the first {FIRST:.0%} of passes: {start:.2f} times that "
            "of later passes of their size"
        )
    if cost is not None:
        evidence.append(
            f"a token at the coldest {COLD:.0%} of experts costs {cost[0]:.1f} times one "
            f"at the hottest; they take {cost[1]:.1%} of the experts' time for "
            f"{cost[2]:.1%} of tokens"
        )
    return evidence


def _fetched(result: Result) -> str:
    """Return how often experts had to be fetched, if they ever are."""
    rate = result.summary.get("expert_hit_rate")
    if rate is None:
        return "weights are always in GPU memory here: nothing is fetched on first use"
    stall = result.summary["load_stall_frac"]
    return (
        f"{1 - rate:.1%} of experts were not in GPU memory as they were needed; passes "
        f"waited for nothing but them for {stall:.1%} of their time"
    )


def _start(result: Result) -> float | None:
    """Return the first passes' time of experts over that of later ones as large."""
    passes = result.passes.sort_values(["replication", "pass_id"])
    ratios = []
    for _, run in passes.groupby("replication"):
        tokens = (run["tokens"] + run["padding_tokens"]).to_numpy(float)
        spent = run["experts_s"].to_numpy(float)
        first = max(1, int(len(run) * FIRST))
        for at in range(first):
            alike = np.abs(tokens[first:] - tokens[at]) <= 0.1 * tokens[at]
            if alike.sum() >= 3 and spent[first:][alike].mean() > 0:
                ratios.append(spent[at] / spent[first:][alike].mean())
    return float(np.median(ratios)) if ratios else None


def _cold_cost(result: Result) -> tuple[float, float, float] | None:
    """Return the cold experts' cost a token over the hot ones', and their shares."""
    table = result.experts.groupby(["layer", "expert"])[["tokens", "service_s"]].sum()
    table = table[table["tokens"] > 0].sort_values("tokens", kind="stable")
    count = int(len(table) * COLD)
    if not count:
        return None
    tokens, service = (table[key].to_numpy(float) for key in ("tokens", "service_s"))
    dear = service[:count].sum() / tokens[:count].sum()
    cheap = service[-count:].sum() / tokens[-count:].sum()
    if cheap <= 0:
        return None
    shares = (part[:count].sum() / part.sum() for part in (service, tokens))
    return (float(dear / cheap), *(float(share) for share in shares))  # type: ignore[return-value]
