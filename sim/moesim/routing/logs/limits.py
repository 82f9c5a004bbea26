"""What a log may cost to read, and what a person says that the file does not."""

from dataclasses import dataclass
from time import monotonic

from moesim.errors import InputError

MOST_EXPERTS = 1 << 16
"""Experts of a layer that ids of two bytes can name."""
MOST_LAYERS = 4096
MOST_CHOICES = 1024
"""Experts of one token in one layer."""
PARSED_BYTES = 24
"""Bytes of memory that one byte of JSON may become: ``[],`` makes an object of 56."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What reading one log may take; beyond it the log is refused.

    Parameters
    ----------
    memory_bytes : int
        Memory for what is read. Tokens beyond it go to an unnamed temporary file;
        formats that cannot be read piece by piece are refused.
    file_bytes : int
        Bytes on disk, and bytes once inflated.
    ratio : int
        How much larger than in the file compressed data may be.
    line_bytes : int
        The longest line of a text format.
    depth : int
        Levels of nesting.
    seconds : float
        Time for one log.
    """

    memory_bytes: int = 1 << 31
    file_bytes: int = 1 << 37
    ratio: int = 400
    line_bytes: int = 1 << 26
    depth: int = 50
    seconds: float = 1800.0


@dataclass(frozen=True, slots=True)
class Hints:
    """What the reader is told besides the file; 0, None and "" mean: nothing.

    Parameters
    ----------
    experts, layers, top_k : int
        Of the model: experts of a layer, layers of the log, experts of a token.
    warmup : int or None
        Leading tokens (or steps, where there are no tokens) to drop. None drops only
        what no real traffic can be; 0 keeps everything.
    array : str
        Which array of a file with several.
    """

    experts: int = 0
    layers: int = 0
    top_k: int = 0
    warmup: int | None = None
    array: str = ""


class Meter:
    """Counts down the time of one reading, and refuses what is too large to hold."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._end = monotonic() + limits.seconds

    def tick(self) -> None:
        """Raise `InputError` when the time is up."""
        if monotonic() > self._end:
            limit = self.limits.seconds
            raise InputError(f"not read within {limit:g} s, which is the time limit")

    def hold(self, size: int, what: str) -> None:
        """Raise `InputError` when `size` bytes do not fit the memory limit."""
        if size > self.limits.memory_bytes:
            raise InputError(
                f"{what} needs {size} bytes of memory; the limit is "
                f"{self.limits.memory_bytes}"
            )

    @property
    def document_bytes(self) -> int:
        """The longest JSON or YAML document whose parsed form fits the memory limit."""
        return max(1, self.limits.memory_bytes // PARSED_BYTES)

    @property
    def line_bytes(self) -> int:
        """The longest line that may be parsed at once."""
        return min(self.limits.line_bytes, self.document_bytes)
