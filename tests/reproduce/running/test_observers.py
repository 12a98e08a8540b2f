"""Test observers: a failing one is dropped with a notice, and the run continues."""

from collections.abc import Mapping
from typing import Any

from reproduce.measures.context import Observer
from reproduce.running.progress import Observers


class Full(Observer):
    """Fail as TensorBoard's files do on a full disk."""

    title = "--tensorboard"

    def __init__(self) -> None:
        self.asked = 0

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self.asked += 1
        raise OSError(28, "No space left on device")


class Ear(Observer):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self.heard.append(f"epoch {metrics['epoch']}")

    def notice(self, text: str) -> None:
        self.heard.append(text)


def test_failing_observer_is_dropped_with_one_notice() -> None:
    """An observer that fails is not called again, and the others get one notice."""
    full, ear = Full(), Ear()
    observers = Observers(full, ear)
    for epoch in (1, 2):
        observers.epoch({"epoch": epoch})
    observers.close()
    assert full.asked == 1
    assert [text for text in ear.heard if text.startswith("epoch")] == ["epoch 1", "epoch 2"]
    (notice,) = [text for text in ear.heard if not text.startswith("epoch")]
    assert notice.startswith("WARNING: --tensorboard ends here (OSError: [Errno 28] No space left on device)")


def test_no_error_if_every_observer_fails() -> None:
    Observers(Full()).epoch({"epoch": 1})
