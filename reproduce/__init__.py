"""Reproduce the paper: cells (experiments), their records, training, exhibits and the report."""

import os

# Deterministic kernels need this setting. torch reads it only once per process, at the first use of cuBLAS.
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
os.environ.setdefault(*WORKSPACE)
