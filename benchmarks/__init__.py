"""Provide benchmark scripts. Each measures one claim and prints its configuration with the result."""
