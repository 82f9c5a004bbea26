"""One result, one comparison and one run without events for all figures."""

import pytest

from results import empty_result, make_comparison, make_result


@pytest.fixture(scope="session")
def result():
    return make_result()


@pytest.fixture(scope="session")
def nothing():
    return empty_result()


@pytest.fixture(scope="session")
def comparison():
    return make_comparison()
