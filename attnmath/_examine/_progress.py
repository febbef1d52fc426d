"""A line on the screen that says what is being done, once it takes long."""

import sys
import time

PATIENCE = 1.5  # seconds without a word


class Progress:
    """Says what is being done, if it is wanted; on a screen, one line in place of another."""

    def __init__(self, wanted: bool, screen: bool) -> None:
        self.wanted, self.screen, self.start, self.width = wanted, screen, time.monotonic(), 0

    def __call__(self, what: str) -> None:
        seconds = time.monotonic() - self.start
        if self.wanted and seconds > PATIENCE:
            line = f"{seconds:4.0f} s  {what}"
            print(f"\r{line:<{self.width}}" if self.screen else line,
                  end="" if self.screen else "\n", file=sys.stderr, flush=True)  # fmt: skip
            self.width = len(line)

    def end(self) -> None:
        """Take the line away."""
        if self.screen and self.width:
            print("\r" + " " * self.width + "\r", end="", file=sys.stderr, flush=True)
