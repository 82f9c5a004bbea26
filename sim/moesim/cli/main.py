"""Where the command line begins and ends: signals, output, and nothing else.

Everything is imported within, so that who stops it early sees no fault of ours.
"""

from moesim.cli.ending import ending


def main() -> None:
    """Run the command line."""
    with ending():
        from moesim.cli.commands import app

        app()
