"""Tests mirror the packages: `tests/test_<module>.py` for each module, plus the end-to-end ones."""
