"""How a command ends: stopped by a signal, or with its output written, or not.

Kept small: it is there before anything else is imported.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EBADF
from io import TextIOBase
from signal import SIG_DFL, SIGINT, Signals, getsignal, signal
from types import FrameType

UNWRITABLE = 74
"""Exit code when the output could not be written (EX_IOERR of sysexits.h)."""
STOPPED = 128
"""Exit code of what a signal stopped, less the number of the signal."""
STOPS = ("SIGTERM", "SIGHUP")
"""Signals that are taken like Ctrl-C, where the system has them."""


class Stopped(KeyboardInterrupt):
    """A signal asked to stop; everything is left as on Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class OutputError(Exception):
    """Standard output takes nothing more."""


class Closed(TextIOBase):
    """Stands for a standard output that is closed: nothing may pass for written."""

    def write(self, _: str) -> int:
        """Raise `OSError`, as a closed file descriptor does."""
        raise OSError(EBADF, os.strerror(EBADF))


@contextmanager
def ending() -> Iterator[None]:
    """Turn signals, and output that cannot be written, into a message and a code."""
    if sys.stdout is None:
        sys.stdout = Closed()
    with stops():
        try:
            try:
                yield
            finally:
                sys.stdout.flush()
        except KeyboardInterrupt as stop:
            raise SystemExit(code_of(stop)) from None
        except BrokenPipeError:
            _discard()
            raise SystemExit(0) from None
        except (OSError, OutputError) as error:
            _discard()
            raise SystemExit(unwritten(error)) from None


@contextmanager
def stops() -> Iterator[None]:
    """Raise `Stopped` where a signal asks to stop; who ignores one goes on to do so."""
    wanted = [Signals[name] for name in STOPS if name in Signals.__members__]
    taken = [number for number in wanted if getsignal(number) == SIG_DFL]
    try:
        for number in taken:
            signal(number, _stop)
        yield
    finally:
        for number in taken:
            signal(number, SIG_DFL)


def code_of(stop: KeyboardInterrupt) -> int:
    """Return the exit code of what a signal stopped, as shells give it.

    >>> code_of(KeyboardInterrupt()), code_of(Stopped(15))
    (130, 143)
    """
    return STOPPED + (stop.number if isinstance(stop, Stopped) else SIGINT)


def unwritten(error: object) -> int:
    """Tell that the output is not written, and why; return the exit code."""
    why = getattr(error, "strerror", None) or error
    warn(f"error: the output cannot be written: {why}")
    return UNWRITABLE


def warn(text: str) -> None:
    """Print a message on stderr, if anything can be."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _stop(number: int, _: FrameType | None) -> None:
    raise Stopped(number)


def _discard() -> None:
    """Send what is still buffered nowhere: the interpreter tries again at its end."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
