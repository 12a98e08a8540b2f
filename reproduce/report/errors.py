"""Define the report's errors where importing them is fast."""


class ReadmeError(ValueError):
    """A README without a place for the results."""
