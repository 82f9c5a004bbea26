"""Quantities as people write them: parsed with their unit, printed with a fitting one.

Everything inside the package is in SI units (seconds, bytes, bytes per second, flop per
second); a unit appears only in files and on screens. The parsers here accept what
scenario files may hold, a number or a text such as ``5 ms``, and refuse what could be
read in two ways: a bare ``G``, bits for bytes, ``1,000``.

They raise `ValueError` with a sentence for people, and no other exception. Everywhere
else bad input raises `InputError`; a parser does not know in which file and under which
key its value stood, so its caller (a schema validator) adds the place. Refused by all:
truth values, NaN and infinities, digits grouped (``1,000``) or outside ASCII, negative
quantities, and numbers without unit where one is needed (0 needs none).
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite

from moesim.errors import closest, shown

DURATIONS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "min": Decimal(60),
    "h": Decimal(3600),
}
"""Seconds in each unit of time."""
BYTES = {
    "B": Decimal(1),
    "kB": Decimal(10**3),
    "MB": Decimal(10**6),
    "GB": Decimal(10**9),
    "TB": Decimal(10**12),
    "KiB": Decimal(2**10),
    "MiB": Decimal(2**20),
    "GiB": Decimal(2**30),
    "TiB": Decimal(2**40),
}
"""Bytes in each unit of memory; GB and GiB differ by 7 %."""
BANDWIDTHS = {f"{unit}/s": scale for unit, scale in BYTES.items()} | {
    f"{prefix}b/s": Decimal(power) / 8
    for prefix, power in {
        "": 1,
        "k": 10**3,
        "M": 10**6,
        "G": 10**9,
        "T": 10**12,
    }.items()
}
"""Bytes per second in each unit of bandwidth; ``Gb/s`` counts bits, ``GB/s`` bytes."""
FLOPS = {
    "GFLOPS": Decimal(10**9),
    "TFLOPS": Decimal(10**12),
    "PFLOPS": Decimal(10**15),
}
"""Operations per second in each unit of arithmetic speed."""
COUNTS = {
    "K": Decimal(10**3),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "B": Decimal(10**9),
    "T": Decimal(10**12),
}
"""Multiples in which tokens, requests and parameters are counted."""

_BARE = "{0} alone is no unit: write {0}B (powers of 1000), {0}iB (1024) or {0}b (bits)"
_MEANT = {
    "m": "'m' may be minutes or milliseconds: write 'min' or 'ms'",
    "sec": "write 's'",
    "secs": "write 's'",
    "seconds": "write 's'",
    "msec": "write 'ms'",
    "usec": "write 'us'",
    "hours": "write 'h'",
    "minutes": "write 'min'",
    "K": "K alone is no unit: write kB (1000 bytes) or KiB (1024)",
    "KB": "write kB (1000 bytes) or KiB (1024)",
    "M": _BARE.format("M"),
    "G": _BARE.format("G"),
    "T": _BARE.format("T"),
    "Kb/s": "write 'kb/s' (bits)",
    "KB/s": "write 'kB/s' (1000 bytes a second) or 'KiB/s'",
    "b": "'b' are bits: memory is written in B, GB or GiB",
    "Mb": "'Mb' are megabits: write MB (10^6 bytes) or MiB (2^20)",
    "Gb": "'Gb' are gigabits: write GB (10^9 bytes) or GiB (2^30)",
    "Tb": "'Tb' are terabits: write TB (10^12 bytes) or TiB (2^40)",
    "Gbps": "write 'Gb/s' for bits or 'GB/s' for bytes",
    "GBps": "write 'GB/s' for bytes or 'Gb/s' for bits",
    "TFLOP": "a speed is meant: write 'TFLOPS'",
    "TFLOP/s": "write 'TFLOPS'",
    "PFLOP/s": "write 'PFLOPS'",
}
"""What was meant by units that are close to right, or that could mean two things."""
_COUNT_MEANT = {"G": "write 'B' for 10^9", "m": "write 'M' for 10^6"}
_LONGEST = 64
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def parse_duration(value: object) -> float:
    """Return seconds from a text such as ``5ms`` or ``1.5 h``; else raise `ValueError`.

    >>> parse_duration("5ms"), parse_duration("1.5 h"), parse_duration(0)
    (0.005, 5400.0, 0.0)
    """
    return _quantity(value, DURATIONS, "a duration such as '5 ms'")


def parse_bytes(value: object) -> float:
    """Return bytes from a text such as ``80 GB`` or ``64GiB``; else raise `ValueError`.

    >>> parse_bytes("80 GB"), parse_bytes("1GiB")
    (80000000000.0, 1073741824.0)
    """
    return _quantity(value, BYTES, "an amount of memory such as '80 GB'")


def parse_bandwidth(value: object) -> float:
    """Return **bytes** per second, 50e9 for ``400 Gb/s``; else raise `ValueError`.

    >>> parse_bandwidth("400 Gb/s"), parse_bandwidth("50GB/s")
    (50000000000.0, 50000000000.0)
    """
    return _quantity(value, BANDWIDTHS, "a bandwidth such as '50 GB/s' or '400 Gb/s'")


def parse_flops(value: object) -> float:
    """Return operations per second from ``989 TFLOPS``; else raise `ValueError`.

    >>> parse_flops("989 TFLOPS")
    989000000000000.0
    """
    return _quantity(value, FLOPS, "an arithmetic speed such as '989 TFLOPS'")


def parse_count(value: object) -> int:
    """Return a whole number from ``2000``, ``1e6``, ``128K`` or ``671B``.

    ``K``, ``M``, ``B`` and ``T`` are powers of 1000, never of 1024. Raises `ValueError`
    for fractions, other suffixes, and counts beyond 64 bits.

    >>> parse_count("128K"), parse_count("46.7B"), parse_count(1e6)
    (128000, 46700000000, 1000000)
    """
    wanted = "a whole number such as 2000 or '2K'"
    number, unit = _split(value, wanted)
    if unit and unit not in COUNTS:
        raise ValueError(_unknown(value, unit, COUNTS, _COUNT_MEANT))
    exact = number * COUNTS.get(unit, Decimal(1))
    _refuse_sign(exact, value)
    if exact >= 2**63:
        raise ValueError(f"{shown(value)} is too large: {wanted} is expected")
    if exact != exact.to_integral_value():
        raise ValueError(f"{shown(value)} is not whole: {wanted} is expected")
    return int(exact)


def parse_number(value: object) -> float:
    """Return a finite number without unit, of either sign; else raise `ValueError`.

    >>> parse_number(0.8), parse_number("1e-3")
    (0.8, 0.001)
    """
    number, unit = _split(value, "a number")
    if unit:
        raise ValueError(f"{shown(value)} has a unit {shown(unit)}; none is expected")
    return float(number) + 0.0


def format_seconds(seconds: float) -> str:
    """Return a duration in three digits and the unit that fits.

    >>> format_seconds(0.0123456), format_seconds(0.9996), format_seconds(5400)
    ('12.3 ms', '1 s', '1.5 h')
    """
    return _printed(seconds, DURATIONS) if seconds else "0 s"


def format_bytes(count: float) -> str:
    """Return an amount in powers of 1000: ``80 GB``, as disks and links are sold.

    >>> format_bytes(80e9), format_bytes(512)
    ('80 GB', '512 B')
    """
    return _printed(
        count, {unit: BYTES[unit] for unit in ("B", "kB", "MB", "GB", "TB")}
    )


def format_binary_bytes(count: float) -> str:
    """Return an amount in powers of 1024: ``74.5 GiB``, as device memory is counted.

    >>> format_binary_bytes(80e9), format_binary_bytes(70272)
    ('74.5 GiB', '68.6 KiB')
    """
    return _printed(
        count, {unit: BYTES[unit] for unit in ("B", "KiB", "MiB", "GiB", "TiB")}
    )


def format_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth in bytes per second, powers of 1000.

    >>> format_bandwidth(450e9)
    '450 GB/s'
    """
    return f"{format_bytes(bytes_per_s)}/s"


def format_count(count: float) -> str:
    """Return a count in three digits with K, M, B or T.

    >>> format_count(46.7e9), format_count(128000), format_count(7)
    ('46.7B', '128K', '7')
    """
    scales = {"": Decimal(1)} | {unit: COUNTS[unit] for unit in ("K", "M", "B", "T")}
    return _printed(count, scales).replace(" ", "")


def _quantity(value: object, scales: Mapping[str, Decimal], wanted: str) -> float:
    number, unit = _split(value, wanted)
    _refuse_sign(number, value)
    if not unit:
        if number == 0:
            return 0.0
        raise ValueError(f"{shown(value)} has no unit: {wanted} is expected")
    if unit not in scales:
        raise ValueError(_unknown(value, unit, scales, _MEANT))
    result = float(number * scales[unit])
    if not isfinite(result):
        raise ValueError(f"{shown(value)} is too large: {wanted} is expected")
    return result


def _split(value: object, wanted: str) -> tuple[Decimal, str]:
    """Return the number, exactly, and the unit that follows it, if any."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{shown(value)} is no quantity: {wanted} is expected")
    text = value.strip(" \t") if isinstance(value, str) else shown(value)
    match = _NUMBER.match(text) if len(text) <= _LONGEST and text.isascii() else None
    if match is None:
        raise ValueError(f"{shown(value)} cannot be read: {wanted} is expected")
    unit = text[match.end() :].strip(" \t")
    if unit[:1] in {"_", ","}:
        raise ValueError(
            f"{shown(value)} groups its digits: write them without {unit[0]!r}"
        )
    number = Decimal(match.group())
    if not isfinite(float(number)):
        raise ValueError(f"{shown(value)} is too large: {wanted} is expected")
    return number, unit


def _refuse_sign(number: Decimal, value: object) -> None:
    if number < 0:
        raise ValueError(f"{shown(value)} is negative")


def _unknown(
    value: object, unit: str, scales: Mapping[str, Decimal], meant: Mapping[str, str]
) -> str:
    hint = meant.get(unit) or _nearest(unit, scales)
    known = ", ".join(scales)
    found = f"{shown(value)}: unknown unit {shown(unit)} (known: {known})"
    return f"{found}; {hint}" if hint else found


def _nearest(unit: str, scales: Mapping[str, Decimal]) -> str:
    """Return a question that names every known unit as near as the nearest one."""
    if f"{unit}/s" in scales:
        return f"did you mean '{unit}/s'?"
    folded = [known.lower() for known in scales]
    close = closest(unit.lower(), folded, cutoff=0.5)
    names = [repr(known) for known in scales if known.lower() in close]
    return f"did you mean {' or '.join(names)}?" if names else ""


def _printed(value: float, scales: Mapping[str, Decimal]) -> str:
    """Return three digits and the largest unit of which there is at least one."""
    if not isfinite(value):
        return "n/a"
    rounded = {unit: float(f"{value / float(scales[unit]):.3g}") for unit in scales}
    fitting = [unit for unit, digits in rounded.items() if abs(digits) >= 1]
    unit = fitting[-1] if fitting else next(iter(scales))
    digits = rounded[unit]
    number = f"{digits:g}" if abs(digits) < 1e5 else f"{digits:.0f}"
    return f"{number} {unit}"
