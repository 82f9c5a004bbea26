"""YAML text into plain data that remembers where each value was written.

Only the plain part of YAML 1.2 is read: mappings, lists and scalars, built from the
parser's events without recursion. Anchors, aliases, merge keys and tags are refused, so
a short file cannot grow, loop or run anything.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    DocumentStartEvent,
    Event,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from moesim.errors import InputError, Problem
from moesim.scenario.tree import Location, Mark, Tree

DEPTH_LIMIT = 50
"""Levels of nesting; a scenario needs four."""
SIZE_LIMIT = 128 * 1024
"""Bytes of a scenario file; a long one has three thousand."""

_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_WORDS: dict[str, Any] = (
    dict.fromkeys(("", "~", "null", "Null", "NULL"), None)
    | dict.fromkeys(("true", "True", "TRUE"), True)
    | dict.fromkeys(("false", "False", "FALSE"), False)
    | dict.fromkeys((".inf", ".Inf", ".INF"), float("inf"))
    | {"-.inf": float("-inf"), ".nan": float("nan"), ".NaN": float("nan")}
)
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufeff\ufffe\uffff]"
)
_TRIPS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What ruamel.yaml's scanner raises, besides its own errors, on odd escapes."""
_LINE_END = re.compile("\r\n|\r|\n")


def read_tree(text: str, where: str) -> Tree:
    """Return the data of one YAML document, with its marks.

    Raises
    ------
    InputError
        The text is too long, holds characters that do not print, is not YAML, or is
        nested too deep; problems that do not stop reading are in the tree instead.
    """
    tree = Tree(None, where, tuple(_LINE_END.split(text)))
    if len(text) > SIZE_LIMIT:
        message = f"the text has {len(text)} characters; at most {SIZE_LIMIT} are read"
        raise InputError([tree.problem((), message)])
    odd = list(_UNPRINTABLE.finditer(text))[:20]
    if odd:
        raise InputError([_odd_character(tree, text, hit.start()) for hit in odd])
    composer = _Composer(tree)
    for event in _events(text, tree):
        composer.take(event)
    return composer.finish()


def plain(text: str) -> object:
    """Return what an unquoted YAML 1.2 scalar means.

    ``010``, ``1:30``, ``1_000``, ``0x10``, ``on`` and ``NO`` stay text, and so does a
    number beyond the machine's range: nothing is guessed.

    Examples
    --------
    >>> plain("900e9"), plain("12"), plain("on"), plain("010"), plain("1e999")
    (900000000000.0, 12, 'on', '010', '1e999')
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if abs(number) < float("inf") else text
    return text


def _odd_character(tree: Tree, text: str, offset: int) -> Problem:
    before = _LINE_END.split(text[:offset])
    mark = (len(before), len(before[-1]) + 1)
    name = f"U+{ord(text[offset]):04X}"
    return tree.problem((), f"the character {name} is not allowed here", mark)


def _events(text: str, tree: Tree) -> Iterator[Event]:
    try:
        yield from YAML(typ="safe", pure=True).parse(text)
    except MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        mark = (place.line + 1, place.column + 1) if place else (0, 0)
        raise InputError([tree.problem((), _syntax(error), mark)]) from None
    except (YAMLError, *_TRIPS) as error:
        raise InputError([tree.problem((), f"not YAML: {error}")]) from None


def _syntax(error: MarkedYAMLError) -> str:
    found = str(error.problem or error.context or "unreadable")
    if "'\\t'" in found:
        return "not YAML: a tab may not indent; use spaces"
    context = f" ({error.context})" if error.context and error.problem else ""
    return f"not YAML: {found}{context}"


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not come yet."""

    items: dict[Any, Any] | list[Any]
    at: Location
    key: str | int | None = None


class _Composer:
    """Builds plain data from events, one at a time; holds what is still open."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.open: list[_Open] = []
        self.documents = 0
        self.data: Any = None
        self.problems: list[Problem] = []

    def take(self, event: Event) -> None:
        """Take the next event of the document."""
        if isinstance(event, DocumentStartEvent):
            self._start(event)
        elif isinstance(event, CollectionEndEvent):
            self.open.pop()
        elif isinstance(event, NodeEvent):
            self._node(event)

    def finish(self) -> Tree:
        """Return the tree, once the text has ended."""
        tree = self.tree
        problems = tuple(self.problems)
        return Tree(self.data, tree.where, tree.lines, tree.keys, tree.values, problems)

    def _start(self, event: DocumentStartEvent) -> None:
        self.documents += 1
        if self.documents > 1:
            self._stop(event, "a second document starts here; a file holds one")
        if event.version or event.tags:
            self._stop(event, "directives (%YAML, %TAG) are not read; remove them")

    def _node(self, event: NodeEvent) -> None:
        if isinstance(event, AliasEvent):
            self._stop(
                event, f"the alias *{event.anchor} is not read; repeat the value"
            )
        if event.anchor:
            self._note(event, f"the anchor &{event.anchor} is not read; remove it")
        tag = getattr(event, "tag", None)
        if tag:
            self._note(event, f"the tag {tag} is not read; remove it")
        parent = self.open[-1] if self.open else None
        if parent and isinstance(parent.items, dict) and parent.key is None:
            self._key(event, parent)
        else:
            self._value(event, parent)

    def _key(self, event: NodeEvent, parent: _Open) -> None:
        if not isinstance(event, ScalarEvent):
            self._stop(event, "a key must be a plain word")
        key = _key_of(event)
        at = (*parent.at, key)
        if key == "<<":
            self._note(event, "merge keys (<<) are not read; repeat the values", at)
        if at in self.tree.keys:
            line = self.tree.keys[at][0]
            self._note(event, f"{key!r} is given twice; first on line {line}", at)
        self.tree.keys[at] = _mark(event)
        parent.key = key

    def _value(self, event: NodeEvent, parent: _Open | None) -> None:
        at: Location = ()
        if parent and isinstance(parent.items, list):
            at = (*parent.at, len(parent.items))
        elif parent and parent.key is not None:
            at = (*parent.at, parent.key)
        self.tree.values[at] = _mark(event)
        value = self._content(event, at)
        if parent is None:
            self.data = value
        elif isinstance(parent.items, list):
            parent.items.append(value)
        else:
            parent.items[parent.key], parent.key = value, None

    def _content(self, event: NodeEvent, at: Location) -> object:
        if isinstance(event, ScalarEvent):
            if _UNPRINTABLE.search(event.value):
                self._note(event, "the text holds a character that does not print", at)
            if not event.style and _LEADING_ZERO.fullmatch(event.value):
                self._note(event, f"{event.value}: a number may not begin with 0", at)
            return _scalar(event)
        if len(self.open) >= DEPTH_LIMIT:
            self._stop(event, f"nested deeper than {DEPTH_LIMIT} levels", ())
        items: dict[Any, Any] | list[Any]
        items = {} if isinstance(event, MappingStartEvent) else []
        self.open.append(_Open(items, at))
        return items

    def _note(self, event: Event, message: str, at: Location | None = None) -> None:
        place = self.open[-1].at if at is None and self.open else at or ()
        self.problems.append(self.tree.problem(place, message, _mark(event)))

    def _stop(self, event: Event, message: str, at: Location | None = None) -> NoReturn:
        self._note(event, message, at)
        raise InputError(self.problems)


def _mark(event: Event) -> Mark:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _scalar(event: ScalarEvent) -> object:
    quoted = event.style in ("'", '"', "|", ">")
    return event.value if quoted else plain(event.value)


def _key_of(event: ScalarEvent) -> str | int:
    value = _scalar(event)
    return value if type(value) is int else str(event.value)
