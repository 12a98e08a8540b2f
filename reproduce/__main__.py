"""`python -m reproduce`."""

import time

STARTED = time.monotonic()  # a time budget includes what it takes to import torch

if __name__ == "__main__":
    from reproduce.cli import main

    main(prog_name="python -m reproduce", obj=STARTED)
