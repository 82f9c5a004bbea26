"""A discrete-event simulator of Mixture-of-Experts inference clusters.

>>> import moesim
>>> scenario = moesim.load("scenarios/quickstart.yaml")  # doctest: +SKIP
>>> moesim.run(scenario).summary["p99_ttft_ms"]  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moesim.errors import InputError, SimulationError
    from moesim.scenario.load import Scenario, load, load_text
    from moesim.simulate import compare, open_run, run

__version__ = "0.1.0"
__all__ = [
    "InputError",
    "Scenario",
    "SimulationError",
    "__version__",
    "compare",
    "load",
    "load_text",
    "open_run",
    "run",
]
_HOMES = {
    "InputError": "errors",
    "SimulationError": "errors",
    "Scenario": "scenario.load",
    "load": "scenario.load",
    "load_text": "scenario.load",
    "compare": "simulate",
    "open_run": "simulate",
    "run": "simulate",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import moesim` itself is quick."""
    if name not in _HOMES:
        message = f"module 'moesim' has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module

    return getattr(import_module(f"moesim.{_HOMES[name]}"), name)
