"""Arrays by what they hold, as files, the worker and scoring hand them on."""

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
"""Token ids, and small counts; as trace files and the worker hold them."""
Floats32 = npt.NDArray[np.float32]
"""Logits and log-probabilities as trace files and the worker hold them."""
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
"""Counts and figures in arithmetic."""
