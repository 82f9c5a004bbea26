"""Options and settings of the whole suite, and the command as its users call it."""

import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")


def pytest_addoption(parser):
    parser.addoption(
        "--update-baseline",
        action="store_true",
        help="write what the golden runs give now, to be reviewed in the diff",
    )


@pytest.fixture
def moesim(monkeypatch, tmp_path, capsys):
    """Run the command in an empty folder; return exit code, stdout and stderr."""
    from moesim.cli.main import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["moesim", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code or 0, *capsys.readouterr()

    return call
