"""The array types of the simulator."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
