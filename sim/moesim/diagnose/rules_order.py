"""Findings about order: over time, between logs, between layers, between tokens.

Each rule returns a finding, or None where there is nothing to say.
"""

from shlex import quote

from moesim.diagnose.finding import Record, again, finding, largest, two, variants

BURSTS = 1.2
"""Times the variance of independent tokens over which loads are called bursty."""


def off_peak(record: Record) -> Record | None:
    """Say whether layers make up for each other, and what staggering could give."""
    size, _, gains = largest(record)
    found = record["across_layers"]["complementarity"][size]
    words = {
        "complementary": "Ranks hot in one layer are cold in others, more than by chance",
        "independent": "Layers' hot ranks are independent, not complementary",
        "aligned": "The same ranks are hot in layer after layer",
    }
    text = {
        "complementary": "Running different layers at the same time can even them out.",
        "independent": "Running different layers at the same time averages loads out as "
        "it would for any independent layers; there is nothing special to exploit.",
        "aligned": "Running different layers at the same time helps less than it would "
        "if layers were independent: look for a slow or overloaded GPU first.",
    }
    verdict = found["verdict"]
    return finding(
        words[verdict],
        f"{text[verdict]} A schedule that never waits for a layer's slowest rank saves at "
        f"most {gains['off_peak']['saves']:.0%} at EP{size}.",
        [
            f"max/mean: {found['by_layer_median']:.2f} in a layer (median), "
            f"{found['summed']:.2f} summed over layers",
            f"independent layers would give {found['independent']:.2f} "
            f"({found['independent_p1']:.2f} to {found['independent_p99']:.2f})",
            f"correlation of neighbouring layers {two(found['correlation'])}",
        ],
        "moesim compare SCENARIO --policies fifo,cross_layer",
        0.0,
    )


def drift(record: Record) -> Record | None:
    """Say whether popularity changes as the log goes on."""
    drift = record["time"]["drift"]
    if drift is None:
        return None
    moved = drift["distance"] > drift["by_chance_p95"]
    _, _, gains = largest(record)
    fitted, later = (gains["replication"][key] for key in ("fitted", "held_out"))
    evidence = [
        f"first to second half: {drift['distance']:.3f} of tokens go elsewhere; windows "
        f"in random order {drift['by_chance']:.3f} (95 %: {drift['by_chance_p95']:.3f})",
        f"hot experts of the first quarter still hot in the last: "
        f"{drift['hot_overlap']:.0%}",
    ]
    lost = 0.0
    if later is not None:
        lost = max(0.0, fitted["saves"] - later["saves"])
    return finding(
        "Popularity drifts" if moved else "Popularity does not drift",
        "What was hot at first is not what is hot later, more than chance explains: a "
        "placement must be renewed, and one fitted to old loads loses."
        if moved
        else "A placement fitted to the start of this log is as good for its end as "
        "chance lets it be: rebalancing often buys nothing.",
        evidence,
        variants("contiguous: placement.name=contiguous", "eplb: placement.name=eplb"),
        lost if moved else 0.0,
    )


def classes(record: Record) -> Record | None:
    """Say whether two logs use the same experts."""
    found = record["classes"]
    if found is None:
        return None
    differ = found["cosine"] < found["halves"] - 0.05
    return finding(
        "The two logs use different experts" if differ else "The two logs agree",
        "A placement for the one is not one for the other: separate them, or fit to "
        "both."
        if differ
        else "One placement serves both.",
        [
            f"cosine of popularity {found['cosine']:.2f}; of a log's own halves at least "
            f"{found['halves']:.2f}",
            f"{found['distance']:.0%} of tokens go elsewhere, most in layer "
            f"{found['most_different']}; {found['hot_overlap']:.0%} of hot experts shared",
        ],
        f"moesim diagnose {quote(record['log']['paths'][0])}   # each by itself",
        0.0,
    )


def foresight(record: Record) -> Record | None:
    """Say what layers tell of each other."""
    seen = record["across_layers"].get("prediction")
    info = record["across_layers"].get("information")
    if seen is None or not info:
        return None
    good = seen["recall"] > seen["blind_recall"] + 0.1
    evidence = [
        f"next layer's first choice foreseen: {seen['top1']:.1%}; without looking "
        f"{seen['blind']:.1%}",
        f"all choices among as many guesses: {seen['recall']:.1%}; without looking "
        f"{seen['blind_recall']:.1%}",
        "information after "
        + ", ".join(f"{i['gap']}" for i in info)
        + " layers: "
        + ", ".join(f"{i['bits']:.2f}" for i in info)
        + " bits ("
        + ", ".join(f"{i['shuffled']:.2f}" for i in info)
        + " of them by chance)",
    ]
    return finding(
        "A layer tells what the next will ask for"
        if good
        else "A layer tells little of the next",
        f"Fetching ahead as many experts as a token uses, going by the previous "
        f"layer's first choice, hides {seen['recall']:.0%} of fetches at most; the "
        f"popular ones whatever the token, {seen['blind_recall']:.0%}."
        + _slow_decay(info),
        evidence,
        again(record, "--json"),
        None,
    )


def _slow_decay(info: list[Record]) -> str:
    first, last = info[0]["corrected"], info[-1]["corrected"]
    if len(info) < 2 or first <= 0 or last < 0.6 * first:
        return ""
    return (
        " The information decays slowly with distance: it is the kind of token or "
        "topic that decides, not the path from layer to layer."
    )


def neighbours(record: Record) -> Record | None:
    """Say whether neighbouring tokens share experts."""
    time = record["time"]
    if "next_token_overlap" not in time:
        return None
    mine, alone = time["next_token_overlap"], time["independent_overlap"]
    if mine < 1.2 * alone:
        return None
    burst = time["burst"]
    evidence = [
        f"a token shares {mine:.1%} of its experts with the next; independent tokens "
        f"{alone:.1%}"
    ]
    if burst is not None:
        evidence.append(
            f"tokens of an expert in {burst['tokens']} neighbours vary "
            f"{burst['dispersion']:.1f} times as much as independent ones'"
        )
    bursts = burst is not None and burst["dispersion"] > BURSTS
    return finding(
        "Neighbouring tokens ask for the same experts",
        "A cache of experts gains from it."
        + " Loads come in bursts: short batches of one request are less even than "
        "random ones." * bursts,
        evidence,
        again(record, "--json"),
        None,
    )
