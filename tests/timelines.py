"""Draw simulated timelines as text."""

from reproduce.drawing.timeline import Timeline


def picture(timeline: Timeline) -> list[str]:
    """Return a line per device: digits are forwards, letters backwards and | updates."""
    lines = []
    for device in range(timeline.devices):
        line = ["."] * round(timeline.seconds)
        for event in timeline.events:
            if event.device == device:
                kind, _, number = event.name
                letter = {"F": str(number % 10), "B": "abcdefgh"[number % 8], "U": "|"}[kind]
                for column in range(round(event.begin), round(event.end)):
                    line[column] = letter
        lines.append("".join(line))
    return lines
