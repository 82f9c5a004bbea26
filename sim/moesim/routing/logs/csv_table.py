"""CSV tables: ``layer,expert,count``, ``layer,expert`` or ``token,layer,expert...``."""

from moesim.errors import InputError
from moesim.routing.logs import csvs
from moesim.routing.logs.log import RoutingLog
from moesim.routing.logs.peek import Peek
from moesim.routing.logs.sglang_csv import HEADER
from moesim.routing.logs.source import Source, refusal
from moesim.routing.logs.table import columns_of, read_table, recognised

NAME = "csv"
SUMMARY = "CSV: layer,expert,count | layer,expert | token,layer,expert[_0,...]"
FOLDERS = False


def recognise(peek: Peek) -> bool:
    """Tell whether the columns are those of a long table, and not SGLang's own."""
    return peek.container == "csv" and recognised(peek.names) and peek.names != HEADER


def read(source: Source) -> RoutingLog:
    """Return counts, or tokens where there is a column ``token``."""
    path = source.files[0]
    names = csvs.header(path, source.meter)
    try:
        columns = columns_of(names)
    except InputError as error:
        raise refusal(error.problems[0].message, path, 1) from None
    found = csvs.blocks(path, source.meter, len(names))
    return read_table(source, NAME, columns, (block.rows for block in found))
