"""Where a model's weights lie: bytes of each part on one GPU.

Attention, dense layers, shared experts and vocabulary matrices are there once per
data-parallel rank, split among its tensor-parallel GPUs; routers are whole on each.
"""

from dataclasses import dataclass, fields

from moesim.spec.model import ModelSpec
from moesim.spec.parameters import attention_parameters
from moesim.spec.system import BYTES, System

WIDE = 2.0
"""Bytes of an element of what quantised checkpoints leave in 16 bits: vocabulary
matrices and routers (``modules_to_not_convert`` of gpt-oss and MiniMax)."""


@dataclass(frozen=True, slots=True)
class ResidentBytes:
    """Weights that each GPU has whatever experts it holds, in bytes.

    Parameters
    ----------
    attention, dense, shared, router : float
        Projections and norms of all layers, feed-forward networks of dense layers,
        shared experts, routers.
    vocabulary : float
        Input embedding and LM head; a tied matrix is there once.
    """

    attention: float
    dense: float
    shared: float
    router: float
    vocabulary: float

    @property
    def total(self) -> float:
        """All of them together."""
        return sum(float(getattr(self, item.name)) for item in fields(self))


def resident_parts(system: System) -> ResidentBytes:
    """Return the weights each GPU has whatever experts it holds, by part.

    Shared experts that are fused with routed ones are whole on each, in their format.
    """
    model, split = system.model, system.tensor_parallel
    size = BYTES[system.precision.weights]
    attention = attention_parameters(model.hidden, model.attention, split)
    matrices = 1 if model.tied_embeddings else 2
    dense, shared = -(-model.dense_width // split), -(-model.shared_width // split)
    shared_size = size
    if system.fuses:
        shared, shared_size = model.shared_width, BYTES[system.precision.experts]
    return ResidentBytes(
        attention=model.layers * (attention + 2 * model.hidden) * size,
        dense=3 * model.hidden * dense * model.dense_layer_count * size,
        shared=3 * model.hidden * shared * model.moe_layer_count * shared_size,
        router=model.moe_layer_count * model.hidden * model.experts * WIDE,
        vocabulary=matrices * -(-model.vocab // split) * model.hidden * WIDE,
    )


def resident_bytes(system: System) -> float:
    """Return the weights each GPU has whatever experts it holds."""
    return resident_parts(system).total


def expert_bytes(model: ModelSpec, element: str) -> float:
    """Return one routed expert in a number format.

    >>> from moesim.spec.catalogue import load_model
    >>> expert_bytes(load_model("mixtral-8x7b"), "bf16")
    352321536.0
    """
    return model.expert_parameters * BYTES[element]


def experts_bytes(system: System) -> float:
    """Return the routed experts that one GPU keeps, of all layers, copies included."""
    size = expert_bytes(system.model, system.precision.experts)
    return system.resident_copies * size


def transfer_s(size: float, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Return the seconds that moving `size` bytes over an idle port takes.

    >>> round(transfer_s(352321536, 55e9) * 1e3, 3)  # Mixtral's expert, PCIe 5.0
    6.406
    """
    return latency_s + size / bytes_per_s
