"""Define the content of the report: one module for each table, figure or study."""
