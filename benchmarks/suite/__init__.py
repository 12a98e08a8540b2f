"""The suite that asv runs (asv.conf.json): one module per subject, one class per measured quantity.

asv imports this folder as a separate package from the checkout that it is started in, and measures every installed
commit with it. So the modules import few names except the project's exports, and import one another relatively. Names
that the project gained late are imported where they are used, so that an older commit fails only in that benchmark.
Parameters are written out and not derived from the project: asv passes them by number, and another commit might number
them differently. docs/benchmarks.md explains names, units and parameters.

Rules for this folder: Lower values are better. A class has a `version`, which must be raised when it measures something
else; without it, asv treats any edit as a new benchmark and drops its history. No module touches CUDA before `setup`:
asv forks the measuring processes from one that has imported these modules, and CUDA does not survive a fork.
"""
