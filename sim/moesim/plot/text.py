"""Numbers as a figure writes them."""

from moesim.units import format_seconds


def duration(ms: float) -> str:
    """Return a duration, given in ms, in three digits and the unit that fits.

    Examples
    --------
    >>> [duration(ms) for ms in (0, 0.0042, 7.346, 1234)]
    ['0', '4.2 µs', '7.35 ms', '1.23 s']
    """
    return format_seconds(ms / 1e3).replace(" us", " µs") if ms else "0"


def counted(number: int, noun: str) -> str:
    """Return `number` of `noun`, in the plural where it is due.

    Examples
    --------
    >>> counted(1, "request"), counted(2000, "request"), counted(2, "pass")
    ('1 request', '2,000 requests', '2 passes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"
