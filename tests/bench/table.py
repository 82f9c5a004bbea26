"""Rows of a benchmark as one plain table, and as JSON."""

from dataclasses import asdict, dataclass, is_dataclass

from bench.timing import Fit, Spread


@dataclass(frozen=True)
class Column:
    """One column: which entry of a row, its title with its unit, how to write it."""

    key: str
    title: str
    form: str = ""


def shown(value, form):
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, Spread):
        low, middle, high = (
            format(x, form) for x in (value.low, value.median, value.high)
        )
        return f"{middle} [{low}, {high}]"
    if isinstance(value, Fit):
        return f"{value.exponent:{form}} +- {value.error:{form}}"
    return format(value, form)


def table(title, columns, rows):
    """Return the rows as text; [a, b] are quartiles over rounds."""
    cells = [[shown(row.get(c.key), c.form) for c in columns] for row in rows]
    heads = [column.title for column in columns]
    width = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = [_line(line, width, columns) for line in [heads, *cells]]
    rule = "  ".join("-" * w for w in width)
    return "\n".join([title, "", lines[0], rule, *lines[1:], ""])


def _line(cells, width, columns):
    """Words stand left, numbers right."""
    parts = [
        f"{cell:>{w}}" if column.form else f"{cell:<{w}}"
        for cell, w, column in zip(cells, width, columns, strict=True)
    ]
    return "  ".join(parts).rstrip()


def plain(value):
    """Return a row, or a part of one, as JSON can hold it."""
    if is_dataclass(value):
        return asdict(value)
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value
