"""Folders that appear whole or not at all."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from typing import Any

from moesim.errors import InputError, Problem

MANIFEST = "manifest.json"
LATEST = "latest"
KIND = "moesim"
"""What the `kind` in every manifest of ours begins with."""


def check_target(folder: Path) -> None:
    """Refuse a place that results must not replace.

    Raises
    ------
    InputError
        If `folder`, or what should be a folder above it, is a file; if nothing can be
        written there; or if `folder` holds anything but an earlier result of ours,
        whole and alone.
    """
    with readable_errors(folder):
        for place in (folder, *folder.parents):
            if place.exists() and not place.is_dir():
                raise refusal(place, "is a file; a folder is needed here")
        if folder.is_dir() and any(folder.iterdir()) and not is_ours(folder):
            raise refusal(
                folder,
                "is not empty and not an earlier result of moesim; "
                "name a new folder or empty this one",
            )
        strange = foreign(folder) if folder.is_dir() else []
        if strange:
            names = ", ".join(str(path) for path in strange[:3])
            raise refusal(folder, f"holds what no run wrote: {names}; move it away")
        above = Path(os.path.realpath(folder)).parents
        home = next((place for place in above if place.exists()), folder)
        if not os.access(home, os.W_OK | os.X_OK):
            raise refusal(folder, f"cannot be written: {home} is read-only")


def foreign(folder: Path) -> list[Path]:
    """Return the files in `folder` that its manifest does not list."""
    listed = read_manifest(folder).get("files")
    known = {MANIFEST, *(listed if isinstance(listed, dict) else ())}
    files = (path.relative_to(folder) for path in sorted(folder.rglob("*")))
    return [p for p in files if not (folder / p).is_dir() and p.as_posix() not in known]


def is_ours(folder: Path) -> bool:
    """Return whether `folder` holds a manifest that we wrote."""
    return str(read_manifest(folder).get("kind", "")).startswith(KIND)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of `folder`; an empty one when there is none to be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder to fill, which becomes `folder` once the block is done.

    Whatever stops the block, `folder` stays as it was and nothing is left beside it.
    An earlier result of ours in its place is replaced: by two renames, as there is no
    portable way to exchange folders in one.

    Raises
    ------
    InputError
        If `folder` must not be replaced (see `check_target`) or cannot be written.
    """
    folder = Path(os.path.realpath(folder))
    draft = sibling(folder, "tmp")
    made: list[Path] = []
    with readable_errors(folder):
        try:
            check_target(folder)
            made += make_folders(folder.parent)
            draft.mkdir()
            yield draft
            sync(draft)
            move(draft, folder)
        except BaseException:
            remove(draft, made)
            raise


@contextmanager
def readable_errors(folder: Path) -> Iterator[None]:
    """Turn what the system says against `folder` into an error for people."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise refusal(folder, f"cannot be written: {why}") from error


def remove(draft: Path, made: Sequence[Path]) -> None:
    """Delete `draft` with its contents, and of the folders `made` the empty ones."""
    rmtree(draft, ignore_errors=True)
    for parent in made:
        with suppress(OSError):
            parent.rmdir()


def refusal(place: Path, why: str) -> InputError:
    """Return the error that says why nothing goes to `place`."""
    return InputError([Problem(f"{why}; nothing was written", where=str(place))])


def sibling(folder: Path, suffix: str) -> Path:
    """Return a hidden path beside `folder` that nothing else uses."""
    return folder.with_name(f".{folder.name}.{token_hex(4)}.{suffix}")


def make_folders(folder: Path) -> list[Path]:
    """Create `folder` and those above it; return the new ones, innermost first."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def sync(folder: Path) -> None:
    """Have the disk hold everything under `folder` before it gets its name."""
    for path in (*sorted(folder.rglob("*")), folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def move(draft: Path, folder: Path) -> None:
    """Rename `draft` to `folder`; an earlier one comes back if that fails."""
    if not folder.exists():
        draft.rename(folder)
        return
    earlier = sibling(folder, "old")
    folder.rename(earlier)
    try:
        draft.rename(folder)
    except BaseException:
        earlier.rename(folder)
        raise
    rmtree(earlier, ignore_errors=True)


def point_latest(folder: Path) -> None:
    """Make ``latest`` beside `folder` lead to it; a text file where links cannot be."""
    link = folder.with_name(LATEST)
    draft = sibling(link, "tmp")
    note = link.with_suffix(".txt")
    try:
        draft.symlink_to(folder.name)
        draft.replace(link)
        note.unlink(missing_ok=True)
    except OSError:
        draft.unlink(missing_ok=True)
        draft.write_text(f"{folder.name}\n")
        draft.replace(note)


def locate(path: Path) -> Path:
    """Return the folder that `path` means: itself, or what its ``latest`` leads to.

    `path` may be a result, the ``latest`` beside results, or the folder they lie in.

    Raises
    ------
    InputError
        If there is no such folder.
    """
    inner = path if path.name == LATEST else path / LATEST
    if path.is_dir() and (path / MANIFEST).exists():
        return path.resolve()
    if inner.is_dir():
        return inner.resolve()
    note = inner.with_suffix(".txt")
    if note.is_file():
        return (note.parent / note.read_text().strip()).resolve()
    if path.is_dir():
        return path
    found = "a file" if path.exists() else "no such folder"
    raise InputError(
        [Problem(f"{found}; expected the folder of a saved run", where=str(path))]
    )


def stamp(manifest: Mapping[str, Any]) -> str:
    """Return the manifest's ISO date as part of a folder's name.

    Examples
    --------
    >>> stamp({"date": "2026-11-29T10:44:55+01:00"})
    '20261129-104455'
    """
    return datetime.fromisoformat(manifest["date"]).strftime("%Y%m%d-%H%M%S")


def file_name(name: str) -> str:
    """Return `name` as a safe name of one folder.

    Examples
    --------
    >>> file_name("hotspot"), file_name("../a b"), file_name("..")
    ('hotspot', 'a-b', 'run')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "run"


def unused(folder: Path) -> Path:
    """Return `folder`, numbered when a run of the same second already has the name."""
    number = 1
    place = folder
    while place.exists():
        number += 1
        place = folder.with_name(f"{folder.name}-{number}")
    return place
