"""Options and settings of the whole suite."""

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
