"""A line on the screen that says what is being done, once it takes long."""

import sys
import time

PATIENCE = 1.5  # seconds without a word


class Progress:
    """Says what is being done, if it is wanted; one line in place of another where it is a screen."""

    def __init__(self, wanted: bool, screen: bool) -> None:
        self.wanted, self.screen, self.width = wanted, screen, 0
        self.start = self.last = time.monotonic()

    def __call__(self, what: str) -> None:
        now = time.monotonic()
        if not self.wanted or now < (self.start if self.screen else self.last) + PATIENCE:
            return
        line = f"{now - self.start:4.0f} s  {what}"
        if self.screen:
            print(f"\r{line:<{self.width}}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
        self.width, self.last = len(line), now

    def end(self) -> None:
        """Take the line away."""
        if self.screen and self.width:
            print("\r" + " " * self.width + "\r", end="", file=sys.stderr, flush=True)
