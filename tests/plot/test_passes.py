"""A pass is drawn as its parts, which together are as long as it is."""

from dataclasses import replace

import numpy as np

from moesim.measure.tables import COLUMNS
from moesim.plot.passes import PARTS, by_kind, compared_breakdown, mean_parts
from moesim.plot.text import duration
from results import SMALL, frame, make_result

SECONDS = {
    "attention_s": [0.001, 0.003],
    "experts_s": [0.004, 0.004],
    "queue_s": [0.0, 0.010],
    "straggler_s": [0.006, 0.0],
    "dispatch_s": [0.001, 0.001],
    "combine_s": [0.001, 0.003],
    "lm_head_s": [0.0, 0.0],
}


def two_passes():
    result = make_result(size=SMALL)
    tables = replace(result.tables, passes=frame("passes", SECONDS))
    return replace(result, tables=tables)


def bars(figure):
    """Return where each bar begins and how long it is."""
    patches = figure.axes[0].patches
    return [(patch.get_x(), patch.get_width()) for patch in patches]


def test_every_part_of_a_pass_is_drawn():
    """A part left out would be time that nobody sees."""
    recorded = list(COLUMNS["passes"])
    timed = recorded[recorded.index("attention_s") :]

    assert {part.column for part in PARTS} == set(timed)


def test_parts_are_means_over_passes_in_ms():
    parts = dict(zip(PARTS, mean_parts(two_passes()), strict=True))

    assert {part.column: round(ms, 9) for part, ms in parts.items()} == {
        "attention_s": 2.0,
        "experts_s": 4.0,
        "queue_s": 5.0,
        "straggler_s": 3.0,
        "dispatch_s": 1.0,
        "combine_s": 2.0,
        "lm_head_s": 0.0,
    }


def test_steps_follow_each_other_and_end_with_the_pass():
    """Each part begins where the one before it ends; the last ends the pass."""
    spans = bars(two_passes().plot.breakdown())
    ends = [start + length for start, length in spans]

    assert spans[0][0] == 0
    assert np.allclose([start for start, _ in spans[1:]], ends[:-1])
    assert np.isclose(ends[-1], 17.0)


def test_every_step_says_its_time_and_share():
    figure = two_passes().plot.breakdown()
    texts = [text.get_text() for text in figure.axes[0].texts]

    assert texts[0] == "2 ms · 12 %"
    assert len(texts) == len(PARTS)


def test_the_title_sums_up_kinds_of_time_largest_first():
    title = two_passes().plot.breakdown().get_suptitle()

    assert (
        title == "A pass takes 17 ms: 47 % waiting, 35 % computing, 18 % moving tokens"
    )


def test_kinds_of_time_sum_to_the_pass():
    parts = mean_parts(make_result(size=SMALL))

    assert np.isclose(sum(by_kind(parts).values()), parts.sum())


def test_kinds_differ_in_hatch_as_well_as_colour():
    """In grey, waiting still looks unlike computing."""
    patches = two_passes().plot.breakdown().axes[0].patches
    hatches = {
        part.kind: patch.get_hatch() for part, patch in zip(PARTS, patches, strict=True)
    }

    assert len(set(hatches.values())) == len(hatches)


def test_policies_are_stacked_one_bar_each(comparison):
    figure = comparison.plot.breakdown()
    ends = np.array(bars(figure)).sum(axis=1).reshape(len(comparison.policies), -1)
    totals = [mean_parts(result).sum() for result in comparison.results.values()]
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]

    assert np.allclose(ends[:, -1], totals)
    assert names == list(comparison.policies)


def test_the_title_of_a_comparison_names_the_shortest_and_longest_pass(comparison):
    title = comparison.plot.breakdown().get_suptitle().replace("\n", " ")
    totals = {n: mean_parts(r).sum() for n, r in comparison.results.items()}

    assert f"under {min(totals, key=totals.get)}, " in title
    assert f"under {max(totals, key=totals.get)} (" in title


def test_policies_that_wait_alike_are_not_ranked():
    figure = compared_breakdown({"fifo": two_passes(), "oldest": two_passes()})
    total = float(mean_parts(two_passes()).sum())

    assert figure.get_suptitle() == f"A pass takes {duration(total)} under every policy"


def test_a_run_without_passes_says_so(nothing):
    alone = nothing.plot.breakdown().axes[0]
    both = compared_breakdown({"fifo": nothing}).axes[0]

    assert alone.texts[0].get_text() == "No pass has finished."
    assert both.texts[0].get_text() == "No pass has finished."
