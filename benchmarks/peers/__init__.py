"""Compare PETRA with other implementations of reversible training: same network, same weights, same micro-batch.

The packages are not dependencies of the project. `nox -s peers` installs them from `requirements.txt` into a separate
environment. If a package is missing or fails, its row reports that.
"""
