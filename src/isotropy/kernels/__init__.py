"""When a computation runs as one kernel, what stands in for torch's operations, and the kernels."""
