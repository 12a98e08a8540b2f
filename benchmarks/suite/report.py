"""Seconds to build the report from some of the committed records."""

from pathlib import Path

RECORDS = Path(__file__).resolve().parents[2] / "reports" / "records"
CHOSEN = (
    "cifar10-revnet18-w8-backpropagation-k1-s0-038f8b24cb43",
    "cifar10-revnet18-w8-backpropagation-k4-s0-c8028dc2cb30",
    "cifar10-revnet18-w8-backpropagation-k32-s0-8121eacee34c",
    "cifar10-revnet18-w8-petra-k1-s0-43a15c9f41f4",
    "cifar10-revnet18-w8-petra-k4-s0-adfa937f04a4",
    "cifar10-revnet18-w8-petra-k32-s0-cb6f77dbe410",
)


class Report:
    """Build the whole page from six fixed trainings of RevNet-18 with seed 0: two methods, three k."""

    version = "3"
    timeout = 300

    def setup_cache(self) -> str:
        from reproduce.records import volumes
        from reproduce.records.record import scan

        folder = Path("records").resolve()
        for run in scan(RECORDS).records:
            if run.cell.name in CHOSEN:
                volumes.publish(run, folder)
        return str(folder)

    def setup(self, folder: str) -> None:
        # Not at the top: asv imports every module to find benchmarks, and this is the slowest import by far.
        from reproduce.report.build import build

        self.build = build

    def time_build(self, folder: str) -> None:
        self.build(Path(folder), Path(folder).with_name("index.html"))
