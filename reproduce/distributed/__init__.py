"""Launch and connect the processes that train one cell together."""
