"""The suite that asv runs (asv.conf.json): one module a subject, one class a thing that is measured.

asv imports this folder as a package of its own, from the checkout it is started in, and measures with it whatever
commit is installed. So the modules use what the project exports and little else, and import one another relatively.
What came late into the project is imported where it is used: a commit without it then fails in that benchmark alone.
Parameters are written out, never asked of the project: asv hands them over by their number, and another commit might
count otherwise.
Names, units and parameters are explained in docs/benchmarks.md.

Rules for what is in here. Every value is lower-is-better. A class has a `version`, to be raised when it measures
something else, or asv takes any edit for a new benchmark and forgets its history. Nothing touches CUDA before `setup`:
asv forks the processes that measure from one that has imported these modules, and CUDA does not survive a fork.
"""
