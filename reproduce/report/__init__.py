"""Build the report: one self-contained HTML file made from the records. This package exports `build`."""

from reproduce.report.build import build
from reproduce.report.readme import ReadmeError

__all__ = ["ReadmeError", "build"]
