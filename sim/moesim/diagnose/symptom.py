"""What one check of a finished run says."""

from typing import Any

Record = dict[str, Any]


def symptom(name: str, text: str, *, found: bool | None = None, **more: Any) -> Record:
    """Return what one check says; `found` None: the run cannot tell."""
    return {"symptom": name, "found": found, "text": text, "evidence": []} | {
        "next": "",
        **more,
    }
