"""Load code when it is needed: modules at their first use, kernels with or without numba, and numba's cache."""
