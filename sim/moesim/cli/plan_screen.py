"""What ``moesim plan`` shows: pure functions from a plan to text and plain data."""

from collections.abc import Sequence
from textwrap import wrap

from moesim.cli.advice import percent
from moesim.cli.plan_explain import Line, explain
from moesim.cli.screens import WIDTH, banner, nodes
from moesim.cost.buffers import Case
from moesim.cost.plan import (
    NVME_BYTES_PER_S,
    PCIE_BYTES_PER_S,
    RULE_OF_THUMB,
    Plan,
)
from moesim.cost.weights import transfer_s
from moesim.spec.parameters import count_parameters
from moesim.units import format_binary_bytes, format_bytes, format_count, format_seconds

BAR = 22
GIB, GB = 2**30, 1e9


def plan_screen(plan: Plan, smallest: Sequence[Plan] = ()) -> str:
    """Return the screen of a plan.

    Parameters
    ----------
    smallest : sequence of Plan
        Where it would fit, when it does not: as of `smallest_clusters`.
    """
    lines = [heading(plan), "", banner("Memory of each GPU")]
    lines += _memory(plan)
    lines += [banner("KV cache", "-"), *_cache(plan)]
    lines += [banner("How tokens are spread", "-"), *_cases(plan)]
    lines += [banner("What else it costs", "-"), *_costs(plan), banner()]
    return "\n".join([*lines, *wrap(verdict(plan, smallest), WIDTH)])


def heading(plan: Plan) -> str:
    """Return the line that says what is planned."""
    system = plan.system
    topology, formats = system.topology, system.precision
    return " · ".join(
        [
            system.model.name,
            f"{topology.gpus}x {topology.gpu.name} ({nodes(topology.nodes)})",
            f"EP{topology.gpus} DP{system.ranks} TP{system.tensor_parallel}",
            f"weights {formats.weights}, experts {formats.experts}, KV {formats.kv}",
        ]
    )


def _memory(plan: Plan) -> list[str]:
    budget = plan.budget
    lines = [f"{'':<34}{'GiB':>9}{'GB':>9}"]
    filled = [(label, size) for label, size in parts(plan) if size]
    lines += [_row(label, size, budget.usable_bytes) for label, size in filled]
    lines += [
        _row("KV cache left", budget.free_bytes, budget.usable_bytes),
        _row(
            f"usable, {plan.terms.utilization:.0%} of the GPU", budget.usable_bytes, 0
        ),
        _row("the GPU", budget.hbm_bytes, 0),
    ]
    return lines


def parts(plan: Plan) -> list[tuple[str, float]]:
    """Return what fills a GPU, without the KV cache."""
    weights, budget, system = plan.weights, plan.budget, plan.system
    slots = system.placement.slots_per_gpu
    experts = f"routed experts, {slots} a layer"
    if system.residency is not None:
        every = slots * system.model.moe_layer_count
        experts = f"routed experts, {system.resident_copies} of {every}"
    return [
        ("attention", weights.attention),
        ("dense layers", weights.dense),
        ("shared experts", weights.shared),
        ("routers", weights.router),
        ("embeddings and head", weights.vocabulary),
        (experts, budget.experts_bytes),
        ("dispatch and combine buffers", budget.buffer_bytes),
        ("activations", budget.workspace_bytes),
        ("reserve", budget.reserve_bytes),
    ]


def _row(label: str, size: float, whole: float) -> str:
    share = min(1.0, max(0.0, size / whole)) if whole else 0.0
    bar = "#" * round(share * BAR)
    return f"{label:<34}{size / GIB:>9.2f}{size / GB:>9.2f}  {bar}".rstrip()


def _cache(plan: Plan) -> list[str]:
    room, system = plan.room, plan.system
    kind, over = attention_kind(plan), plan.quoted_over
    context, most = plan.terms.context, plan.serving.max_num_seqs
    windows = bool(system.model.attention.window_every) and room.sequences == most
    capped = " (serving.max_num_seqs, for windows)" * windows
    size = plan.kv_bytes_per_token
    quoted = (
        "which is right here"
        if abs(over - 1) < 1e-9
        else f"{over:.3g} times {'too much' if over > 1 else 'as much'}"
    )
    return [
        f"A token: {size:.0f} bytes, {format_binary_bytes(size)} ({kind})",
        f"  2 x layers x hidden x bytes would say {plan.quoted_kv_bytes:.0f}, {quoted}",
        f"Tokens of a rank: {room.tokens} in {room.blocks} blocks of"
        f" {plan.serving.block_size}; of the cluster: {room.tokens * system.ranks}",
        f"Sequences of {context} tokens: {room.sequences} a rank,"
        f" {room.sequences * system.ranks} in the cluster{capped}",
    ]


def attention_kind(plan: Plan) -> str:
    """Return how a layer's keys and values are kept, in words."""
    spec, split = plan.system.model.attention, plan.system.tensor_parallel
    if spec.kind == "mla":
        kind = f"latent attention: {spec.kv_rank} + {spec.rope_dim} elements a layer"
    elif spec.kv_heads == spec.heads:
        kind = f"multi-head attention: {spec.heads} heads of {spec.head_dim}"
    else:
        kind = f"grouped queries: {spec.kv_heads} heads of {spec.head_dim}"
    if spec.window_every:
        kind += f"; most layers keep {spec.window} tokens only"
        kind = kind.replace("most", f"{spec.window_every - 1} in {spec.window_every}")
    return kind + (f", on {split} GPUs" if split > 1 else "")


def _cases(plan: Plan) -> list[str]:
    """Return buffers, activations and KV left by how evenly tokens are spread."""
    names: dict[Case, str] = {
        "balanced": "balanced: every GPU the same",
        "expected": "expected: uniform routing, chance",
        "worst": "worst: every token on one GPU",
    }
    lines = [f"{'GiB':<34}{'buffers':>10}{'activations':>13}{'KV left':>10}"]
    for case, budget in plan.budgets.items():
        chosen = "  <- planned" if case == plan.terms.case else ""
        cells = (budget.buffer_bytes, budget.workspace_bytes, budget.free_bytes)
        widths = (10, 13, 10)
        numbers = "".join(
            f"{size / GIB:>{width}.2f}"
            for size, width in zip(cells, widths, strict=True)
        )
        lines.append(f"{names[case]:<34}{numbers}{chosen}")
    low, high = (share * plan.weights_bytes for share in RULE_OF_THUMB)
    return [
        *lines,
        f"Rule of thumb, 15-25 % of the weights for both: {format_binary_bytes(low)}"
        f" to {format_binary_bytes(high)}",
    ]


def _costs(plan: Plan) -> list[str]:
    spare, model = plan.spare, plan.system.model
    count = count_parameters(model)
    stated = model.published_total
    published = f" (published: {format_count(stated)})" if stated else ""
    size = plan.expert_bytes
    pcie, nvme = transfer_s(size, PCIE_BYTES_PER_S), transfer_s(size, NVME_BYTES_PER_S)
    return [
        f"Redundant experts: one a layer takes {format_binary_bytes(spare.bytes)}"
        f" ({format_bytes(spare.bytes)}) of its GPU,",
        f"  {spare.tokens} tokens of its KV cache; GPUs are alike, so they come"
        f" {spare.experts} at a time",
        f"Moving one expert, {format_binary_bytes(size)}: {format_seconds(pcie)} over"
        f" PCIe (55 GB/s), {format_seconds(nvme)} from NVMe (6 GB/s)",
        f"Parameters to keep: {format_count(count.total)}{published};"
        f" working on a token: {format_count(count.active())}",
    ]


def verdict(plan: Plan, smallest: Sequence[Plan]) -> str:
    """Return whether it fits; if not, by how much, and where it would."""
    system, context = plan.system, plan.terms.context
    if plan.fits:
        used = 1 - plan.budget.free_bytes / plan.budget.usable_bytes
        return (
            f"Fits: weights, buffers and activations take {percent(used)} of what is "
            f"usable; {plan.room.sequences * system.ranks} sequences of {context} "
            "tokens at once."
        )
    free = plan.budget.free_bytes
    lack = f"{format_binary_bytes(-free)} too little on each GPU"
    if free >= 0:
        lack = (
            f"the {format_binary_bytes(free)} left hold no sequence of {context} tokens"
        )
    if not smallest:
        return (
            f"Does not fit: {lack}. No number of {system.topology.gpu.name} GPUs is "
            "enough: what each of them has whatever experts it holds is too much. A "
            "narrower precision, more tensor_parallel, or a smaller micro-batch is "
            "needed."
        )
    first, *others = (_larger(plan, other) for other in smallest)
    with_more = "".join(f" With {other}." for other in others)
    return f"Does not fit: {lack}. The smallest cluster that does: {first}.{with_more}"


def _larger(plan: Plan, other: Plan) -> str:
    """Return another cluster, what is different about it, and what it holds."""
    system, topology = other.system, other.system.topology
    wider = system.tensor_parallel
    split = f"tensor_parallel {wider}: " * (wider != plan.system.tensor_parallel)
    spare = topology.gpus * system.placement.slots_per_gpu - system.model.experts
    redundant = f" with {spare} redundant experts" * bool(spare)
    many = "GPUs" if topology.nodes == 1 else f"nodes of {topology.gpus_per_node}"
    count = topology.gpus if topology.nodes == 1 else topology.nodes
    return (
        f"{split}{topology.gpus}x {topology.gpu.name} ({count} {many}){redundant}, "
        f"{other.room.sequences * system.ranks} sequences of {plan.terms.context} "
        "tokens at once"
    )


def explain_screen(plan: Plan) -> str:
    """Return the formula of every figure, with its numbers."""
    lines = [banner("How it is computed", "-")]
    for line in explain(plan):
        lines += [line.label, f"  {line.formula}", f"  = {line.numbers}"]
        lines += [f"  = {_value(line)}"]
    return "\n".join([*lines, banner()])


def _value(line: Line) -> str:
    if line.unit != "B":
        return f"{line.value:.0f} {line.unit}"
    whole = f"{line.value:.0f} B"
    if line.value < GIB / 1024:
        return whole
    return f"{whole} = {format_binary_bytes(line.value)} = {format_bytes(line.value)}"
