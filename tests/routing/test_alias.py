"""Alias tables hold the law they were built from."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from moesim.routing.alias import alias_tables


def law_of(tables, names=65536):
    """Return ``(N, names)`` probabilities that the columns of the tables add up to."""
    entries = tables.entries.reshape(-1, tables.width)
    kept = (entries >> np.uint64(32)).astype(float) / 2**32
    own = ((entries >> np.uint64(16)) & np.uint64(0xFFFF)).astype(int)
    other = (entries & np.uint64(0xFFFF)).astype(int)
    law = np.zeros((len(entries), names))
    for row in range(len(entries)):
        np.add.at(law[row], own[row], kept[row] / tables.width)
        np.add.at(law[row], other[row], (1 - kept[row]) / tables.width)
    return law


weights = st.integers(1, 40).flatmap(
    lambda width: st.lists(
        st.lists(st.floats(1e-12, 1e12), min_size=width, max_size=width),
        min_size=1,
        max_size=4,
    )
)


@settings(max_examples=100)
@given(weights)
def test_a_table_holds_its_law(rows):
    """Shares of the columns equal the weights' shares, to the table's resolution."""
    rows = np.array(rows)
    law = law_of(alias_tables(rows), rows.shape[1])

    assert law == pytest.approx(rows / rows.sum(axis=1, keepdims=True), abs=1e-9)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 10.0])
def test_a_steep_law_of_many_outcomes_is_held(exponent):
    """512 Zipf weights in shuffled order."""
    zipf = np.arange(1, 513) ** -exponent
    rows = np.random.default_rng(0).permuted(np.tile(zipf, (3, 1)), axis=1)

    assert law_of(alias_tables(rows), 512) == pytest.approx(rows / zipf.sum(), abs=1e-9)


def test_outcomes_have_the_names_they_were_given():
    """A table over experts 7 and 300 draws these two, by their weights."""
    law = law_of(alias_tables(np.array([[1.0, 3.0]]), np.array([[7, 300]])))[0]

    assert np.flatnonzero(law).tolist() == [7, 300]
    assert law[[7, 300]] == pytest.approx([0.25, 0.75], abs=1e-9)


def test_draws_follow_the_law_of_their_row():
    """Chi-square of 100000 draws from each of two rows, drawn together."""
    rows = np.array([[1.0, 2, 3, 4], [8.0, 1, 0.5, 0.5]])
    row = np.arange(200_000, dtype=np.uint64) % np.uint64(2)
    bits = np.random.default_rng(2).integers(0, 2**64, len(row), np.uint64)
    drawn = alias_tables(rows).draw(row, bits)

    for number in (0, 1):
        seen = np.bincount(drawn[row == number], minlength=4)
        expected = rows[number] / rows[number].sum() * seen.sum()
        assert stats.chisquare(seen, expected).pvalue > 1e-3


def test_a_side_that_is_too_narrow_for_the_bits_is_never_taken():
    """A share below 2**-33 of a column rounds to nothing, whatever the lower half."""
    tables = alias_tables(np.array([[1e-12, 1.0]]))
    bits = np.array([0, 1, 2**32 - 1, 2**63, 2**64 - 1], np.uint64)

    assert (tables.draw(np.zeros(5, np.uint64), bits) == 1).all()


def test_the_lower_half_of_a_word_is_below_the_threshold_or_not():
    """A quarter of the first column is its own, to the last bit."""
    tables = alias_tables(np.array([[0.125, 0.875]]))
    bits = np.array([0, 2**30 - 1, 2**30, 2**32 - 1], np.uint64)

    assert tables.draw(np.zeros(4, np.uint64), bits).tolist() == [0, 0, 1, 1]
