"""The part of Python's pickle language that tensors are written in, and no more.

A pickle is a program. This reader runs it on a machine of its own that has numbers,
text, lists, dicts and tuples, and knows what a tensor is made of. It never imports or
calls anything that the program names: `REDUCERS` is all there is.

Opcodes: ``Lib/pickletools.py`` of CPython, protocols 0 to 5.
"""

import struct
from collections.abc import Callable
from typing import Any, Final

from moesim.errors import InputError
from moesim.routing.logs.limits import Meter
from moesim.routing.logs.tensors import REDUCERS, Name, Storage, is_whole

OPERATION_BYTES = 100
"""Memory that one operation may take: an empty dict, or an entry of the memo."""
LONGEST_INTEGER = 16
"""Bytes of an integer; torch's magic number has ten."""
TICKS = 1 << 16


class Mark:
    """What lies on the stack where a group begins."""


MARK: Final = Mark()


ADVICE: Final = (
    "only plain tensors and containers are read; convert it where torch is installed: "
    "torch.load(path, weights_only=True), then numpy.savez"
)


class Machine:
    """Runs one program over `data` from `start`; `storages` is all that it may name.

    Parameters
    ----------
    data : bytes
        One program, or several one after the other.
    start : int
        Where the program begins.
    meter : Meter
        Bounds its time and what it builds.
    """

    def __init__(self, data: bytes, start: int, meter: Meter) -> None:
        self.data, self.place, self.meter = data, start, meter
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Return what the program builds; `place` then is where it ended.

        Raises
        ------
        InputError
            The program uses another opcode, names anything but tensors, is damaged or
            builds more than the memory limit allows.
        """
        most = self.meter.limits.memory_bytes // OPERATION_BYTES
        for done in range(most):
            if done % TICKS == 0:
                self.meter.tick()
            code = self.bytes(1)
            action = OPCODES.get(code)
            if action is None:
                raise InputError(f"its pickle uses the opcode {code!r}; {ADVICE}")
            try:
                action(self)
                if code == b".":
                    return self.pop()
            except (IndexError, KeyError, ValueError, TypeError) as error:
                what = f"{type(error).__name__} at byte {self.place}"
                raise InputError(f"its pickle is damaged ({what})") from None
        raise InputError("its pickle builds more than the memory limit allows")

    def bytes(self, size: int) -> bytes:
        """Return the next bytes of the program."""
        end = self.place + size
        if size < 0 or end > len(self.data):
            raise InputError("its pickle is cut off")
        found = self.data[self.place : end]
        self.place = end
        return found

    def line(self) -> str:
        """Return text up to the next line end."""
        end = self.data.find(b"\n", self.place, self.place + 1000)
        if end < 0:
            raise InputError("its pickle is damaged: a line has no end")
        return self.bytes(end + 1 - self.place)[:-1].decode()

    def number(self, form: str) -> Any:
        """Return the next number, in the form of `struct`."""
        return struct.unpack(form, self.bytes(struct.calcsize(form)))[0]

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def pop(self) -> Any:
        """Take the topmost value, which may not be a mark."""
        value = self.stack.pop()
        if value is MARK:
            raise ValueError("a group is open")
        return value

    def group(self) -> list[Any]:
        """Take everything above the topmost mark, and the mark."""
        place = len(self.stack) - 1
        while self.stack[place] is not MARK:
            place -= 1
            if place < 0:
                raise IndexError("no group is open")
        found = self.stack[place + 1 :]
        del self.stack[place:]
        return found


def _integer(machine: Machine, size: int) -> None:
    if size > LONGEST_INTEGER:
        raise InputError(f"its pickle has an integer of {size} bytes")
    machine.push(int.from_bytes(machine.bytes(size), "little", signed=True))


def _tuple(machine: Machine, size: int) -> None:
    found = [machine.pop() for _ in range(size)]
    machine.push(tuple(reversed(found)))


def _extend(machine: Machine) -> None:
    found = machine.group()
    _list(machine).extend(found)


def _append(machine: Machine) -> None:
    value = machine.pop()
    _list(machine).append(value)


def _list(machine: Machine) -> list[Any]:
    target = machine.stack[-1]
    if type(target) is not list:
        raise TypeError("no list")
    return target


def _set(machine: Machine, pairs: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not dict or len(pairs) % 2:
        raise TypeError("no dict")
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        if type(key) not in (str, int):
            raise InputError("a dict in it has keys that are neither text nor integers")
        target[key] = value


def _set_one(machine: Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _set(machine, [key, value])


def _dict(machine: Machine) -> None:
    pairs = machine.group()
    machine.push({})
    _set(machine, pairs)


def _remember(machine: Machine, place: int) -> None:
    machine.memo[place] = machine.stack[-1]


def _named(machine: Machine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.push(Name(str(module), str(name)))


def _call(machine: Machine) -> None:
    arguments, name = machine.pop(), machine.pop()
    if not isinstance(name, Name) or name not in REDUCERS:
        asked = name if isinstance(name, Name) else type(name).__name__
        raise InputError(f"refused: it asks for {asked}, and nothing was run; {ADVICE}")
    if not isinstance(arguments, tuple):
        raise TypeError("no tuple of arguments")
    machine.push(REDUCERS[name](arguments))


def _storage(machine: Machine) -> None:
    """Push the storage that a persistent id names; a sixth entry, a view, is None."""
    tag, kind, key, _, size, *view = machine.pop()
    if tag != "storage" or not isinstance(kind, Name) or any(view):
        raise InputError(f"refused: it holds something that is no tensor; {ADVICE}")
    if kind.module not in ("torch", "torch.storage"):
        raise InputError(f"refused: it asks for {kind}, and nothing was run; {ADVICE}")
    if type(key) is not str or not key.isdecimal() or not key.isascii():
        raise InputError("refused: a storage in it has no number")
    if not is_whole((size,)):
        raise InputError("a storage in it has no size")
    machine.push(Storage(kind.name, key[:20], size))


def _bytes(machine: Machine, size: int) -> None:
    machine.push(machine.bytes(size))


def _text(machine: Machine, size: int) -> None:
    machine.push(machine.bytes(size).decode("utf-8", "surrogatepass"))


OPCODES: Final[dict[bytes, Callable[[Machine], Any]]] = {
    b".": lambda _: None,
    b"\x80": lambda m: m.bytes(1),
    b"\x95": lambda m: m.bytes(8),
    b"(": lambda m: m.push(MARK),
    b"0": lambda m: m.pop(),
    b"1": lambda m: m.group(),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),  # noqa: FBT003
    b"\x89": lambda m: m.push(False),  # noqa: FBT003
    b"J": lambda m: m.push(m.number("<i")),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"G": lambda m: m.push(m.number(">d")),
    b"\x8a": lambda m: _integer(m, m.number("<B")),
    b"\x8b": lambda m: _integer(m, m.number("<I")),
    b"X": lambda m: _text(m, m.number("<I")),
    b"\x8c": lambda m: _text(m, m.number("<B")),
    b"\x8d": lambda m: _text(m, m.number("<Q")),
    b"T": lambda m: _text(m, m.number("<I")),
    b"U": lambda m: _text(m, m.number("<B")),
    b"B": lambda m: _bytes(m, m.number("<I")),
    b"C": lambda m: _bytes(m, m.number("<B")),
    b"]": lambda m: m.push([]),
    b"l": lambda m: m.push(m.group()),
    b"a": _append,
    b"e": _extend,
    b"}": lambda m: m.push({}),
    b"d": _dict,
    b"s": _set_one,
    b"u": lambda m: _set(m, m.group()),
    b")": lambda m: m.push(()),
    b"t": lambda m: m.push(tuple(m.group())),
    b"\x85": lambda m: _tuple(m, 1),
    b"\x86": lambda m: _tuple(m, 2),
    b"\x87": lambda m: _tuple(m, 3),
    b"q": lambda m: _remember(m, m.number("<B")),
    b"r": lambda m: _remember(m, m.number("<I")),
    b"\x94": lambda m: _remember(m, len(m.memo)),
    b"h": lambda m: m.push(m.memo[m.number("<B")]),
    b"j": lambda m: m.push(m.memo[m.number("<I")]),
    b"c": lambda m: m.push(Name(m.line(), m.line())),
    b"\x93": _named,
    b"R": _call,
    b"Q": _storage,
}
"""What the machine can do."""
