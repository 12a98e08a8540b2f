"""Seconds in which the report is made from some of the committed records."""

import shutil
from pathlib import Path

RECORDS = Path(__file__).resolve().parents[2] / "reports" / "records" / "small"
CHOSEN = "cifar10-revnet18-w8-*-s0-*"


class Report:
    """The whole page, from the six trainings of RevNet-18 with seed 0: two methods, three k."""

    version = "1"
    timeout = 300

    def setup_cache(self) -> str:
        folder = Path("records").resolve()
        for record in sorted(RECORDS.glob(CHOSEN)):
            shutil.copytree(record, folder / "small" / record.name)
        return str(folder)

    def setup(self, folder: str) -> None:
        # Not at the top: asv imports every module to find benchmarks, and this import takes the longest by far.
        from reproduce.report.build import build

        self.build = build

    def time_build(self, folder: str) -> None:
        self.build(Path(folder), Path(folder).with_name("index.html"))
