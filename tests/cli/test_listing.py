"""``moesim list``: parameters stand beside the names that take them."""

import re

import pytest

from moesim.cli.listing import listing
from moesim.errors import InputError
from moesim.routing.catalogue import SOURCES
from moesim.scenario.load import load_text
from moesim.scenario.named import keys_fit

TINY = "model: seed-8x32\nworkload: {input_len: 1}\nrouting: "


def test_routing_shows_exactly_the_parameters_that_a_scenario_may_set():
    """What is shown is taken; what is not shown does nothing or is unknown."""
    shown = listing(["routing"])["routing"]
    assert list(shown) == list(SOURCES)
    for name, said in shown.items():
        found = re.search(r"\(([\w, ]+)\)$", said)
        takes = found[1].split(", ") if found else []
        keys_fit(SOURCES, "name", {"name": name, **dict.fromkeys(takes)})
        assert ("draw" in takes) == hasattr(SOURCES[name], "pass_counts")
        with pytest.raises(InputError) as caught:
            keys_fit(SOURCES, "name", {"name": name, "x": 1})
        known = str(caught.value).partition(" is not one of ")[2].split(", ")
        assert set(takes) | {"draw"} == set(known)


def test_a_rush_hour_needs_to_know_where():
    """A bare word cannot say it: the message shows how."""
    with pytest.raises(InputError, match=r"\[\{layer: 2, expert: 5\}\]"):
        load_text(TINY + "rush_hour")
    assert load_text(TINY + "{name: rush_hour, hot: [{layer: 2, expert: 5}]}")
