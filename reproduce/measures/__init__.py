"""Measure cells: one function per kind of cell, from (cell, record, context) to the values of the result."""
