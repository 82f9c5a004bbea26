"""The jobs that experts are on a GPU: one for each, or one for all of them."""

from collections.abc import Callable

from moesim.spec.system import ExpertKernel

Work = tuple[int, int, tuple[int, ...]]
"""A job to be: its place, its picoseconds, and the expert slots it serves."""


def per_expert(services: list[int]) -> list[Work]:
    """Return one job for each expert with tokens."""
    return [(s, service, (s,)) for s, service in enumerate(services) if service]


def grouped(services: list[int]) -> list[Work]:
    """Return one job for all experts with tokens: a grouped kernel."""
    slots = tuple(s for s, service in enumerate(services) if service)
    return [(slots[0], sum(services), slots)] if slots else []


SPLITS: dict[ExpertKernel, Callable[[list[int]], list[Work]]] = {
    "per_expert": per_expert,
    "grouped": grouped,
}
