"""Names for the few array types that the whole package speaks."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Ids = NDArray[np.uint16]
"""Expert ids: the smallest type that holds every model's experts."""
Slots = NDArray[np.integer]
"""Physical slots, in whatever type of integer holds them."""
