"""What a schema cannot see: each named part made once, and parts held to each other.

A check that reads a place already known to be wrong is skipped, so one mistake is told
once and the others still come with it.
"""

from collections.abc import Iterable
from functools import partial

from moesim.engine.assemble.counted import refusal
from moesim.engine.memory.keeper import reserved
from moesim.errors import InputError, Problem
from moesim.policy.steer import gate_refusal
from moesim.routing.catalogue import SOURCES
from moesim.scenario.check import Check
from moesim.scenario.kernels import array_plays, attention_fits, shared_experts_fit
from moesim.scenario.memory import check_capacity, check_reserve, memory_of
from moesim.scenario.named import keys_fit
from moesim.scenario.pieces import (
    arrivals_of,
    length_of,
    model_of,
    policy_of,
    sequence_lengths,
    serving_of,
    source_of,
    workload_of,
)
from moesim.scenario.rebalance import rebalance_of
from moesim.scenario.report import about_key, located
from moesim.scenario.residency import IDLE, residency_fits
from moesim.scenario.schema import Sections
from moesim.scenario.system import (
    fitting_keys,
    left_for_pilot,
    placed_system,
    system_of,
)
from moesim.scenario.tree import Location, Tree, dotted
from moesim.spec.hardware import load_gpu
from moesim.workload.arrivals import TraceArrivals
from moesim.workload.lengths import Lengths, TraceLength

COLUMNS = {"input_len": "input_tokens", "output_len": "output_tokens"}
"""What each law of lengths takes from a trace."""
MOST_GPUS = 4096
"""GPUs of one instance: what is kept of each pair of them must fit into memory."""


def problems_in(
    sections: Sections, tree: Tree, damaged: Iterable[Location]
) -> list[Problem]:
    """Return all that the checks find, leaving out what depends on `damaged` places."""
    problems: list[Problem] = []
    wrong = list(damaged)
    for check in CHECKS:
        if any(_overlap(place, wrong) for place in (check.at, *check.reads)):
            continue
        try:
            check.run(sections)
        except InputError as error:
            found = located(error, check.at, tree)
            problems += [_with_places(problem, check, tree) for problem in found]
            wrong.append(check.at)
    return problems


def _overlap(place: Location, wrong: Iterable[Location]) -> bool:
    """Return whether one of the places holds the other."""
    return any(
        place[: len(other)] == other or other[: len(place)] == place for other in wrong
    )


def _with_places(problem: Problem, check: Check, tree: Tree) -> Problem:
    """Return the problem with the lines of the other places that it depends on.

    What the file does not say is wrong because of what it says elsewhere: there the
    problem is shown.
    """
    present = [place for place in check.reads if place in tree.values]
    if about_key(problem) or not problem.key.startswith(check.tells) or not present:
        return problem
    others = [f"{dotted(at)} on line {tree.values[at][0]}" for at in present]
    message = f"{problem.message} ({', '.join(others)})"
    at, mark = check.at, (problem.line, problem.column)
    if at not in tree.values:
        mark = tree.values[present[-1]]
    moved = tree.problem(at, message, mark)
    return Problem(
        message, problem.where, moved.line, moved.column, problem.key, moved.source
    )


def _tensor_parallel(sections: Sections) -> None:
    cluster = sections.cluster
    if cluster.gpus_per_node % cluster.tensor_parallel:
        said = f"{cluster.tensor_parallel} does not divide the {cluster.gpus_per_node}"
        raise _refused(f"{said} GPUs of a node, which share a rank's attention")


def _size(sections: Sections) -> None:
    count = sections.cluster.nodes * sections.cluster.gpus_per_node
    if count > MOST_GPUS:
        said = f"{sections.cluster.nodes} nodes are {count} GPUs; at most {MOST_GPUS}"
        raise _refused(f"{said} can be simulated as one instance")


def _speeds(sections: Sections) -> None:
    count = sections.cluster.nodes * sections.cluster.gpus_per_node
    problems = [
        Problem(f"there is no GPU {gpu}: they are 0 to {count - 1}", key=str(gpu))
        for gpu in sections.cluster.speed
        if gpu >= count
    ]
    if problems:
        raise InputError(problems)


def _law(sections: Sections, key: str) -> Lengths:
    return length_of(getattr(sections.workload, key), COLUMNS[key])


def _enough_arrivals(sections: Sections) -> None:
    law, wanted = arrivals_of(sections), sections.workload.num_prompts
    if isinstance(law, TraceArrivals) and len(law.trace) < wanted:
        raise _refused(f"the trace has {len(law.trace)} requests, not {wanted}", "path")


def _enough_lengths(sections: Sections, key: str) -> None:
    law, wanted = _law(sections, key), sections.workload.num_prompts
    if isinstance(law, TraceLength) and len(law.values) < wanted:
        raise _refused(
            f"the trace has {len(law.values)} requests, not {wanted}", "path"
        )


def _enough_sequences(sections: Sections, key: str) -> None:
    """See that routing replays a log, with a sequence for every request."""
    wanted = sections.workload.num_prompts
    if getattr(sections.workload, key)["type"] != "log":
        return
    if sections.routing["name"] != "log":
        raise _refused("lengths of type log need routing of name log", "type")
    source = source_of(sections, model_of(sections), sections.seed)
    few = len(sequence_lengths(source))
    if few < wanted:
        raise _refused(f"the log has {few} sequences, not {wanted}", "type")


def _one_token(sections: Sections) -> None:
    one = {"type": "constant", "value": 1}
    if sections.serving.mode == "prefill_only" and sections.workload.output_len != one:
        said = "a request of serving.mode prefill_only ends with its first token"
        raise _refused(f"{said}: leave output_len out, or write 1")


def _whole_prompts(sections: Sections) -> None:
    serving, length = sections.serving, sections.workload.input_len
    limit = serving.max_num_batched_tokens
    constant = length["value"] if length["type"] == "constant" else 0
    if not serving.chunked_prefill and constant > limit:
        said = f"prompts of {constant} tokens never fit whole"
        raise _refused(f"{said} into serving.max_num_batched_tokens, {limit}")


def _counts_suffice(sections: Sections) -> None:
    if sections.routing.get("draw") == "counts":
        reason = refusal(policy_of(sections), sections.kernels.shared_experts)
        if reason:
            raise _refused(f"counts do not suffice: {reason}", "draw")


def _can_change_choices(sections: Sections) -> None:
    policy = policy_of(sections)
    if policy.changes_outputs:
        source = source_of(sections, model_of(sections), sections.seed)
        reason = gate_refusal(policy, source)
        if reason:
            raise _refused(
                f"{policy.name} cannot act on this routing: {reason}", "name"
            )


def _pool(sections: Sections) -> None:
    """See that what is always in memory fits, and one stretch into the pool."""
    if sections.memory is None:
        return
    system = system_of(sections)
    serving = serving_of(sections, system)
    if sections.memory.over_capacity != "ignore":
        check_capacity(reserved(system, serving, policy_of(sections)))
    check_reserve(serving.memory, serving.kv_blocks * serving.block_size)


def _stage_width(sections: Sections) -> None:
    if sections.serving.stage_width and sections.serving.coupling != "lockstep":
        raise _refused("does nothing unless serving.coupling is lockstep")


def _refused(message: str, key: str = "") -> InputError:
    return InputError([Problem(message, key=key)])


_ARRIVALS, _PROMPTS = ("workload", "arrivals"), ("workload", "num_prompts")
_INPUT, _OUTPUT = ("workload", "input_len"), ("workload", "output_len")
_NODES, _GPUS = ("cluster", "nodes"), ("cluster", "gpus_per_node")
_MODEL, _ROUTING, _PLACEMENT = ("model",), ("routing",), ("placement",)
_REBALANCE, _RESIDENCY = ("placement", "rebalance"), ("residency",)
_SHARED = ("kernels", "shared_experts")
_SERVING, _MEMORY = ("serving",), ("memory",)
_OF_LOG = (_MODEL, _PROMPTS, _ROUTING)
_OF_SYSTEM = (_MODEL, _PLACEMENT, ("precision",), ("cluster",))

CHECKS: tuple[Check, ...] = (
    Check(_MODEL, model_of),
    Check(("cluster", "gpu"), lambda s: load_gpu(s.cluster.gpu)),
    Check(_NODES, _size, (_GPUS,)),
    Check(("cluster", "tensor_parallel"), _tensor_parallel, (_GPUS,)),
    Check(("cluster", "speed"), _speeds, (_NODES, _GPUS)),
    Check(_ARRIVALS, arrivals_of),
    Check(_INPUT, partial(_law, key="input_len")),
    Check(_OUTPUT, partial(_law, key="output_len")),
    Check(_REBALANCE, rebalance_of),
    Check(("policy",), policy_of, (_REBALANCE,), ("placement.",)),
    Check(_ROUTING, lambda s: keys_fit(SOURCES, "name", s.routing)),
    Check(
        _ROUTING,
        lambda s: source_of(s, model_of(s), s.seed),
        (_MODEL,),
        ("routing.hot.", "routing.path"),
    ),
    Check(
        _ROUTING,
        _counts_suffice,
        (("policy",), ("serving", "replica"), _REBALANCE, _SHARED),
    ),
    Check(_ARRIVALS, _enough_arrivals, (_PROMPTS,)),
    Check(_INPUT, partial(_enough_lengths, key="input_len"), (_PROMPTS,)),
    Check(_OUTPUT, partial(_enough_lengths, key="output_len"), (_PROMPTS,)),
    Check(_INPUT, partial(_enough_sequences, key="input_len"), _OF_LOG),
    Check(_OUTPUT, partial(_enough_sequences, key="output_len"), _OF_LOG),
    Check(_PLACEMENT, fitting_keys),
    Check(_PLACEMENT, placed_system, (_MODEL, _GPUS, _NODES, ("cluster", "gpu"))),
    Check(_RESIDENCY, system_of, _OF_SYSTEM),
    Check(_RESIDENCY, residency_fits, (("policy",), _SERVING, _REBALANCE)),
    *IDLE,
    Check(_PLACEMENT, left_for_pilot, _OF_LOG),
    Check(_MEMORY, memory_of, (_RESIDENCY,)),
    Check(
        _SERVING,
        lambda s: serving_of(s, system_of(s)),
        (*_OF_SYSTEM, _MEMORY, _RESIDENCY),
    ),
    Check(_MEMORY, _pool, (_SERVING, _RESIDENCY, ("policy",), *_OF_SYSTEM)),
    Check(("policy",), _can_change_choices, (_MODEL, _ROUTING, _REBALANCE)),
    Check(("serving", "stage_width"), _stage_width, (("serving", "coupling"),)),
    Check(_SHARED, shared_experts_fit, (_MODEL, _REBALANCE, _RESIDENCY)),
    Check(
        ("kernels", "attention"),
        attention_fits,
        (
            ("policy",),
            _REBALANCE,
            ("serving", "coupling"),
            ("serving", "max_in_flight"),
        ),
    ),
    Check(
        ("serving", "engine"),
        array_plays,
        (("policy",), ("kernels",), ("serving", "coupling"), *_OF_SYSTEM),
    ),
    Check(_OUTPUT, _one_token, (("serving", "mode"),)),
    Check(_INPUT, _whole_prompts, (("serving", "max_num_batched_tokens"),)),
    Check(("workload",), workload_of),
)
"""Every check, each after those that make what it reads."""
