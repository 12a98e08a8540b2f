"""The paper, reproduced: cells (experiments), their records, the training behind them, tables and the report."""

import os

# Deterministic kernels need it, and torch reads it once, at the first use of cuBLAS in a process, whoever makes that.
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
os.environ.setdefault(*WORKSPACE)
