"""Is what a display says true?

book       all chapters, the scenes in which their displays are run, and work side by side
trial      the sides of the statements of one display, compared in one scene
judge      the verdict on a display; what says less than it seems to
published  a formula that is wrong, or right under a condition: that it fails
promise    the function that a label promises returns what the display says
labels     a label's function, listing and test; the line of each letter; inline relations
listing    the lines of a function's source
normal     one form for the lines of a page and for those of the code
proofs     displays proved in exact arithmetic
"""
