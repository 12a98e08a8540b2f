"""Run cells: locking, execution, progress reports."""
