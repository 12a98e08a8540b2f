"""One module a table or figure: its cells, its values from records, its published values, and how it is drawn.

A module of an exhibit has one function that the report calls, `section(results) -> Section`. The order of the report
is that of `reproduce.report.build`; a new exhibit is a new module and a line there.
"""
