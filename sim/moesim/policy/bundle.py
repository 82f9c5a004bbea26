"""A policy: an object for each role, from a name, a mapping or anyone's class."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from math import inf
from pkgutil import resolve_name
from typing import Any, cast

from moesim.errors import InputError, meant
from moesim.policy.capacity import Unlimited
from moesim.policy.catalogue import POLICIES
from moesim.policy.compose import (
    ASSIGNS,
    ArrivalOrder,
    RoundRobin,
    SmallestKeys,
)
from moesim.policy.dispatch import DISPATCHES, RoundRobinReplica
from moesim.policy.gate import AsRouted
from moesim.policy.order import Fifo, check
from moesim.policy.rebalance import REBALANCES, Rebalance, Still
from moesim.policy.release import AtOnce
from moesim.policy.view import (
    Admit,
    Assign,
    Compose,
    Dispatch,
    Foresight,
    Gate,
    Knowledge,
    Needs,
    Order,
    Release,
    Select,
)
from moesim.units import parse_duration

ROLES: dict[str, type] = {
    "assign": Assign,
    "compose": Compose,
    "release": Release,
    "order": Order,
    "select": Select,
    "dispatch": Dispatch,
    "gate": Gate,
    "admit": Admit,
    "rebalance": Rebalance,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Who decides what. Everything not said is what engines do today."""

    name: str = "custom"
    assign: Assign = field(default_factory=RoundRobin)
    compose: Compose = field(default_factory=ArrivalOrder)
    release: Release = field(default_factory=AtOnce)
    order: Order = field(default_factory=Fifo)
    select: Select = field(default_factory=SmallestKeys)
    dispatch: Dispatch = field(default_factory=RoundRobinReplica)
    gate: Gate = field(default_factory=AsRouted)
    admit: Admit = field(default_factory=Unlimited)
    rebalance: Rebalance = field(default_factory=Still)

    def __post_init__(self) -> None:
        try:
            check(self.knowledge, self.wait_budget_s)
        except (TypeError, ValueError) as error:
            raise InputError(f"policy {self.name!r}: {error}") from None

    @property
    def knowledge(self) -> Knowledge:
        """What the order knows of the routing to come."""
        knowledge = getattr(self.order, "knowledge", "present")
        return cast("Knowledge", knowledge)

    @property
    def wait_budget_s(self) -> float:
        """Seconds after which a queued job is served before all others."""
        return cast("float", getattr(self.order, "wait_budget_s", inf))

    @property
    def foresight(self) -> Foresight:
        """What the order, or else the composition or release, wants to be shown."""
        for role in (self.order, self.compose, self.release):
            found = getattr(role, "foresight", None)
            if found is not None:
                return cast("Foresight", found)
        return Foresight(knowledge=self.knowledge)

    @property
    def feedback(self) -> float:
        """What the release's patience is multiplied by when queues grow."""
        return cast("float", getattr(self.release, "feedback", 1.0))

    @property
    def changes_outputs(self) -> bool:
        """Whether models would answer otherwise under this policy."""
        return type(self.gate) is not AsRouted or type(self.admit) is not Unlimited

    @property
    def coupling(self) -> str:
        """The coupling that the select role needs; empty: any."""
        return cast("str", getattr(self.select, "coupling", ""))

    @property
    def only_selects(self) -> bool:
        """Whether all that it decides is who joins a stage: nothing without stages."""
        plain = (
            *((self.order, Fifo), (self.compose, ArrivalOrder), (self.release, AtOnce)),
            *((self.gate, AsRouted), (self.admit, Unlimited)),
            *((self.assign, *ASSIGNS.values()), (self.dispatch, *DISPATCHES.values())),
            (self.rebalance, Still, *REBALANCES.values()),
        )
        others = all(type(role) in kinds for role, *kinds in plain)
        return others and type(self.select) is not SmallestKeys

    @property
    def needs(self) -> Needs:
        """Whether any role looks at the whole instance at an instant of its choice."""
        found = [getattr(self, role) for role in ROLES]
        instant = any(getattr(r, "needs", "") == "global_instant" for r in found)
        return "global_instant" if instant else "barrier_local"


@dataclass(frozen=True, slots=True)
class Setting:
    """The roles that a scenario's ``serving`` and ``placement`` sections name."""

    assign: str = "round_robin"
    replica: str = "round_robin"
    stage_width: int = 0
    rebalance: Rebalance = field(default_factory=Still)


def make_policy(given: object, setting: Setting = Setting()) -> Policy:
    """Return the policy that `given` describes.

    Parameters
    ----------
    given : str, mapping, Policy or object
        A whole `Policy`; or a name (``"oldest"``), a class by path
        (``"my_module:Class"``), a mapping with ``name`` and parameters, or an object
        that has the method of at least one role (``key``, ``sequence``, ``rank``,
        ``stage``, ``slots``, ``delay``, ``steer``, ``room``, ``watch``).
    setting : Setting
        The roles that the scenario's ``serving`` and ``placement`` sections name.

    Raises
    ------
    InputError
        No such policy, parameter or class, or an object that plays no role.
    """
    if isinstance(given, Policy):
        return given
    name, thing = _resolve(given)
    played = {role: thing for role, kind in ROLES.items() if isinstance(thing, kind)}
    if not played:
        message = f"policy {name!r} plays no role: it needs one of the methods key, "
        message += "sequence, rank, stage, slots, delay, steer, room, watch"
        raise InputError(message)
    roles: dict[str, Any] = {
        "assign": _known(setting.assign, ASSIGNS, "serving.assign")(),
        "dispatch": _known(setting.replica, DISPATCHES, "serving.replica")(),
        "select": SmallestKeys(setting.stage_width),
        "rebalance": setting.rebalance,
    }
    return Policy(name, **(roles | played))


def policy_parameters(name: str) -> tuple[str, ...]:
    """Return the parameters of a named policy, as a scenario writes them."""
    return tuple(item.name.removesuffix("_s") for item in fields(POLICIES[name]))


def _resolve(given: object) -> tuple[str, object]:
    if isinstance(given, Mapping):
        table = {str(key): value for key, value in given.items()}
        name = str(table.pop("name", ""))
        return name, _build(name, table)
    if isinstance(given, str):
        return given, _build(given, {})
    if isinstance(given, type):
        return given.__name__, _call(given.__name__, given, {})
    return type(given).__name__, given


def _build(name: str, table: Mapping[str, object]) -> object:
    if ":" not in name:
        return _call(name, _known(name, POLICIES, "policy"), table)
    try:
        maker = resolve_name(name)
    except Exception as error:  # noqa: BLE001 - it runs code that is not ours
        raise InputError(f"policy {name!r} cannot be imported: {error}") from None
    return _call(name, maker, table)


def _call(name: str, maker: Any, table: Mapping[str, object]) -> object:
    arguments = _in_seconds(name, maker, table) if is_dataclass(maker) else dict(table)
    try:
        return maker(**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"policy {name!r}: {error}") from None


def _in_seconds(
    name: str, maker: Any, table: Mapping[str, object]
) -> dict[str, object]:
    known = {item.name for item in fields(maker)}
    arguments: dict[str, object] = {}
    for key, value in table.items():
        if key in known:
            arguments[key] = value
        elif f"{key}_s" in known:
            arguments[f"{key}_s"] = _duration(f"policy.{key}", value)
        else:
            shown = sorted(item.removesuffix("_s") for item in known)
            raise InputError(f"policy {name!r} has no parameter {_nearest(key, shown)}")
    return arguments


def _duration(key: str, value: object) -> float:
    try:
        return inf if value in ("inf", inf) else parse_duration(value)
    except ValueError as error:
        raise InputError(f"{key}: {error}") from None


def _known(name: str, known: Mapping[str, Any], what: str) -> Any:
    if name in known:
        return known[name]
    raise InputError(f"{what}: no such name {_nearest(name, sorted(known))}")


def _nearest(name: str, known: list[str]) -> str:
    return f"{name!r}{meant(name, known)}; known: {', '.join(known)}"
