"""Arrow arrays as views for kernels, and helpers that kernels share."""
