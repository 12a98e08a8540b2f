"""`python -m reproduce`."""

import time

STARTED = time.monotonic()  # a time budget includes what it takes to import torch

if __name__ == "__main__":
    from reproduce.commands.cli import main
    from reproduce.teams.launch import leaving_at_once

    with leaving_at_once():
        main(prog_name="python -m reproduce", obj=STARTED)
