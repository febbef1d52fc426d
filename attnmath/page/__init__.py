"""The page, executed: reads a chapter's LaTeX, runs every display, judges it.

`python -m attnmath.page check` runs every display of the book; the chapter on notation
says what a label promises. Importing this package imports nothing heavy.
"""
