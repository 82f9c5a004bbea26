"""A diagnosis as a folder: ``findings.json``, figures, and one page with everything."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from moesim.measure.encode import as_json
from moesim.measure.files import seal
from moesim.measure.folder import whole_folder

KIND = "moesim diagnosis"
Record = dict[str, Any]
STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:62rem;margin:2rem auto;
padding:0 1rem}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
table{border-collapse:collapse;font-size:.9rem}td,th{padding:.2rem .7rem;
border-bottom:1px solid #d9d9d9;text-align:right}td:first-child,th:first-child
{text-align:left}img{max-width:100%}code{background:#f5f6f8;padding:.1rem .3rem;
overflow-wrap:anywhere}li{margin-bottom:.8rem}small{color:#666}
"""


def write_diagnosis(
    record: Record, pictures: Mapping[str, bytes], folder: Path
) -> Path:
    """Write a diagnosis, whole or not at all; return its folder.

    Parameters
    ----------
    pictures : mapping of str to bytes
        PNGs by name.

    Raises
    ------
    InputError
        `folder` holds what is not ours, or cannot be written.
    """
    with whole_folder(folder) as draft:
        (draft / "plots").mkdir()
        for name, data in pictures.items():
            (draft / "plots" / f"{name}.png").write_bytes(data)
        (draft / "findings.json").write_bytes(as_json(record))
        (draft / "report.html").write_text(page(record, pictures), encoding="utf-8")
        seal(draft, KIND, {"log": record["log"]["name"]})
    return folder


def page(record: Record, pictures: Mapping[str, bytes]) -> str:
    """Return one HTML page that needs nothing else: no script, no link, no font."""
    log = record["log"]
    size = f"{log['tokens']} tokens" if log["tokens"] else "counts only"
    what = f"{len(log['layers'])} layers, {log['experts']} experts"
    body = [
        f"<h1>Routing diagnosis: {escape(log['name'])}</h1>",
        f"<p>{escape(log['format'])}, {size}, {what}</p>",
        "<h2>Findings</h2>",
        "<ol>",
        *(_finding(item) for item in record["findings"]),
        "</ol>",
    ]
    for name, data in pictures.items():
        text = b64encode(data).decode()
        title = escape(name.replace("_", " "))
        body.append(f"<h2>{title.capitalize()}</h2>")
        body.append(f'<img alt="{title}" src="data:image/png;base64,{text}">')
    body += ["<h2>What could be gained at most</h2>", _bounds(record["bounds"])]
    body += ["<h2>Layers</h2>", _layers(record["imbalance"]["layers"])]
    body += ["<h2>Notes</h2>", "<ul>"]
    body += [f"<li>{escape(text)}</li>" for text in log["notes"]]
    head = f"<title>{escape(log['name'])}</title><style>{STYLE}</style>"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{head}</head>'
        f"<body>{''.join(body)}</ul></body></html>\n"
    )


def _finding(item: Record) -> str:
    evidence = "".join(
        f"<br><small>{escape(text)}</small>" for text in item["evidence"]
    )
    return (
        f"<li><b>{escape(item['title'])}</b><br>{escape(item['text'])}{evidence}"
        f"<br><code>{escape(item['next'])}</code></li>"
    )


def _bounds(bounds: Record) -> str:
    rows = []
    for size, item in bounds.items():
        cells = [f"EP{size}", f"{item['now']:.2f}"]
        cells += [
            _ratio(item["perfect"]),
            _ratio(item["placement"]["held_out"]),
            _ratio(item["placement"]["limit"]),
            _ratio(item["replication"]["held_out"]),
            _ratio(item["prediction"]),
            _ratio(item["off_peak"]),
        ]
        rows.append(cells)
    head = (
        "",
        "now",
        "perfect",
        "moving, held out",
        "no placement beats",
        "copies, held out",
        "foreseeing, besides",
        "layers out of step",
    )
    return _table(head, rows)


def _ratio(item: Record | None) -> str:
    return "-" if item is None else f"{item['ratio']:.2f} (-{item['saves']:.0%})"


def _layers(layers: Sequence[Record]) -> str:
    keys = ("cv", "cv_floor", "max_over_mean", "top10_share", "entropy", "dead")
    rows = [
        [row["layer"], *(f"{row[key]:.3g}" for key in keys), str(row["hottest"])]
        for row in layers
    ]
    names = ("layer", "CV", "by chance", "max/mean", "top 10 %", "entropy", "dead")
    return _table((*names, "hottest"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return f"<table><tr>{top}</tr>{lines}</table>"
