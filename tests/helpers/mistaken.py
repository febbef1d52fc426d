"""Wrong attention, each wrong in one known way; written from descriptions, for a checker to find out."""

from mistaken_forward import FORWARD
from mistaken_marks import MARKS
from mistaken_pairs import PAIRS
from mistaken_state import STATE
from mistaken_sums import SUMS
from mistaken_terms import TERMS
from mistaken_tiles import TILES

MISTAKES = {**TERMS, **SUMS, **MARKS, **TILES, **FORWARD, **PAIRS, **STATE}
