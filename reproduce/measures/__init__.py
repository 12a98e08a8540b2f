"""Measures: one function a kind of cell, from (cell, record, context) to values; training is one of them."""
