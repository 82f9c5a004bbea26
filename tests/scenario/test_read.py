"""YAML text becomes plain data with places, or says what it will not read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesim.errors import InputError
from moesim.scenario.read import DEPTH_LIMIT, SIZE_LIMIT, plain, read_tree


def refused(text):
    """Return line, column and message of every problem that stops the reading."""
    with pytest.raises(InputError) as caught:
        read_tree(text, "f.yaml")
    return [(p.line, p.column, p.message) for p in caught.value.problems]


def noted(text):
    return [(p.line, p.column, p.message) for p in read_tree(text, "f.yaml").problems]


def test_every_key_and_value_has_its_place():
    """Lines and columns count from 1, in block and in flow style."""
    tree = read_tree("a: 1\nb:\n  - {c: x, 3: y}\n", "f.yaml")

    assert tree.data == {"a": 1, "b": [{"c": "x", 3: "y"}]}
    assert tree.keys["b", 0, "c"] == (3, 6)
    assert tree.values["b", 0, 3] == (3, 15)


def test_a_place_that_is_not_written_is_its_parent():
    tree = read_tree("a: 1\nb: {c: 2}\n", "f.yaml")

    assert tree.value_mark(("b", "d", "e")) == (2, 4)
    assert tree.key_mark(("x",)) == (1, 1)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(end):
    tree = read_tree(f"a: 1{end}b: 2{end}", "f.yaml")

    assert tree.keys["b",] == (2, 1)
    assert tree.problem(("b",), "m").source == "b: 2"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("900e9", 900e9),
        ("-3", -3),
        (".5", 0.5),
        ("true", True),
        ("null", None),
        ("", None),
        (".inf", float("inf")),
        ("NO", "NO"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("1e999", "1e999"),
        ("9" * 5000, "9" * 5000),
        ("\u0661\u0662", "\u0661\u0662"),
    ],
)
def test_unquoted_scalars_are_never_guessed(text, value):
    """YAML 1.2, and what it leaves in doubt stays text."""
    assert plain(text) == value
    assert type(plain(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", (3, 1), "first on line 1"),
        ("a: {b: 1, b: 2}\n", (1, 11), "first on line 1"),
        ("a: &x 1\n", (1, 4), "anchor &x"),
        ("a: !!str 1\n", (1, 4), "tag"),
        ("a: !!python/object/apply:os.system [ls]\n", (1, 4), "tag"),
        ("<<: {a: 1}\n", (1, 1), "merge keys"),
        ("a: 010\n", (1, 4), "may not begin with 0"),
        ('a: "\\x1b[31m"\n', (1, 4), "does not print"),
    ],
)
def test_what_could_mislead_is_noted_and_reading_goes_on(text, place, said):
    (problem,) = noted(text)

    assert problem[:2] == place
    assert said in problem[2]


def test_structural_problems_come_together():
    assert len(noted("a: 1\na: &x 2\nb: !t 3\n<<: 4\n")) == 4


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: &x 1\nb: *x\n", 2, "alias *x"),
        ("a: &a [*a]\n", 1, "alias *a"),
        ("a: 1\n---\nb: 2\n", 2, "second document"),
        ("%YAML 1.1\n---\na: 1\n", 2, "directives"),
        ("a:\n\tb: 1\n", 2, "tab"),
        ("a: [1\n", 2, "not YAML"),
        ("a: b: c\n", 1, "not YAML"),
        ("? [a]\n: 1\n", 1, "plain word"),
        ("a: 1\nb: \x1b[31m\n", 2, "U+001B"),
        ("a: \u202e1\n", 1, "U+202E"),
        ('a: "\\U99999999"\n', 1, "not YAML"),
        ("a: " + "[" * (DEPTH_LIMIT + 1), 1, "nested deeper"),
        ("a: " + "{a: " * 5000, 1, "nested deeper"),
        ("#" * (SIZE_LIMIT + 1), 0, "at most"),
    ],
)
def test_what_cannot_be_read_says_where(text, line, said):
    """One error with its line; nothing loops, grows or runs."""
    found = refused(text)[-1]

    assert found[0] == line
    assert said in found[2]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"%@`#,?\n\t 0.~<\\x", max_size=40))
def test_any_text_is_read_or_refused(text):
    """The parser's own faults never come through."""
    try:
        read_tree(text, "f.yaml")
    except InputError as error:
        problems = error.problems
    else:
        return

    assert problems
