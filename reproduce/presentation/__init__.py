"""Present results: statistics, tables and drawings. This package does not read records."""
