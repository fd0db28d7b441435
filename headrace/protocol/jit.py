"""`njit` for kernels: numba's; without it the interpreter runs them, with the same results, some hundred times slower.

Only for kernels whose results do not depend on numba's integer types: those that a client without numba needs. All
others import numba, and say that it is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

try:
    from numba import njit
except ModuleNotFoundError:

    def njit(**_: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Takes numba's options, none of which matters here."""

        def as_it_is(kernel: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(kernel)
            def run(*arguments: Any) -> Any:
                with np.errstate(over="ignore"):  # hashes wrap round
                    return kernel(*arguments)

            return run

        return as_it_is


__all__ = ["njit"]
