"""PETRA beside other implementations of reversible training: same network, same weights, same micro-batch.

The packages are not dependencies of the project; they are installed from `requirements.txt` into an environment of
their own (`nox -s peers`). Where one is missing or fails, the row says so.
"""
