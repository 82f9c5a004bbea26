"""Every source of routing by its name in a scenario."""

from moesim.routing.by_class import ByClass
from moesim.routing.latent import Latent
from moesim.routing.replay import Log
from moesim.routing.synthetic import Lognormal, RushHour, Uniform, Zipf

SOURCES: dict[
    str, type[Uniform | Zipf | Lognormal | RushHour | ByClass | Latent | Log]
] = {
    "uniform": Uniform,
    "by_class": ByClass,
    "zipf": Zipf,
    "lognormal": Lognormal,
    "rush_hour": RushHour,
    "latent": Latent,
    "log": Log,
}
