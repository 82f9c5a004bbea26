"""What a tensor is made of in a pickle, and all that a pickle may ask to be made.

Nothing here holds numbers: a `Tensor` says where they lie, for `torchfile` to read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from moesim.errors import InputError


@dataclass(frozen=True, slots=True)
class Name:
    """A class or function that the program names; only ever compared, never imported."""

    module: str
    name: str

    def __str__(self) -> str:
        return ascii(f"{self.module}.{self.name}")[1:-1][:100]


@dataclass(frozen=True, slots=True)
class Storage:
    """The numbers behind tensors: where they lie, not yet what they are."""

    kind: str
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """A window on a storage, in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str = ""


def _tensor(arguments: tuple[Any, ...]) -> Tensor:
    storage, offset, shape, strides, *rest = arguments
    dtype = rest[2] if len(rest) > 2 else None
    named = dtype.name if isinstance(dtype, Name) else ""
    whole = [shape, strides, (offset,)]
    if not isinstance(storage, Storage) or not all(map(is_whole, whole)):
        raise InputError("a tensor in it is not described by whole numbers")
    if len(shape) != len(strides) or len(shape) > 8:
        raise InputError("a tensor in it has as many strides as it has not sizes")
    return Tensor(storage, offset, shape, strides, named)


def is_whole(values: Any) -> TypeGuard[tuple[int, ...]]:
    """Tell whether `values` are whole numbers that a file can have."""
    if not isinstance(values, tuple):
        return False
    return all(type(item) is int and 0 <= item < 1 << 48 for item in values)


def _parameter(arguments: tuple[Any, ...]) -> Any:
    return arguments[0]


def _ordered(arguments: tuple[Any, ...]) -> dict[Any, Any]:
    if arguments:
        raise InputError("an OrderedDict in it has arguments; that is not read")
    return {}


REDUCERS: Final[dict[Name, Callable[[tuple[Any, ...]], Any]]] = {
    Name("collections", "OrderedDict"): _ordered,
    Name("torch._utils", "_rebuild_tensor_v2"): _tensor,
    Name("torch._utils", "_rebuild_tensor_v3"): _tensor,
    Name("torch._utils", "_rebuild_parameter"): _parameter,
    Name("torch", "Size"): lambda arguments: arguments[0],
}
"""Everything that a program may ask to be called."""
