"""Options that several commands share, each with one meaning and one help text."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where a fault happened.")]
Form = Annotated[
    str | None, typer.Option("--format", help="Format, if not by content.")
]
Told = Annotated[
    list[str] | None,
    typer.Option(
        "--hint", metavar="KEY=VALUE", help="top_k, layers, experts, warmup, array."
    ),
]
