"""`njit` for kernels that also run without numba: then the interpreter runs them, about a hundred times slower.

It is for kernels that a client without numba needs and whose results do not depend on numba's integer types. All other
kernels import numba, which fails if it is not installed.
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
        """Accept numba's options and ignore them."""

        def as_it_is(kernel: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(kernel)
            def run(*arguments: Any) -> Any:
                with np.errstate(over="ignore"):  # hashes wrap round
                    return kernel(*arguments)

            return run

        return as_it_is


__all__ = ["njit"]
