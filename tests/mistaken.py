"""Wrong attention, each wrong in one known way; written from descriptions, for a checker to find out."""

from mistaken_backward import BACKWARD

MISTAKES = {**BACKWARD}
