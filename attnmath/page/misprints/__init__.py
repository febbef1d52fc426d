"""Every small misprint of a display, and whether it is rejected.

edits      the misprints that start at one node
mutations  all misprints of a display: of its formulas, conditions, bounds and lines
misprints  what becomes of each; the corrections of a published formula
"""
