"""Routing logs of every engine, read safely into one form, and written in two."""

from moesim.routing.logs.catalogue import FORMATS
from moesim.routing.logs.limits import Hints, Limits
from moesim.routing.logs.log import Origin, RoutingLog
from moesim.routing.logs.read import read_log
from moesim.routing.logs.write import check_place, write_log, write_npz, write_parquet

__all__ = [
    "FORMATS",
    "Hints",
    "Limits",
    "Origin",
    "RoutingLog",
    "check_place",
    "read_log",
    "write_log",
    "write_npz",
    "write_parquet",
]
