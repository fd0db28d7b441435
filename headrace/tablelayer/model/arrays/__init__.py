"""Arrow arrays as views for kernels, and what kernels share."""
