"""When and how code is loaded: modules at their first use, kernels with or without numba, and numba's cache."""
