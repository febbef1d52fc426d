"""What was run, what it rests on, how well it holds.

imports  which files something is made of
rows     what is found of each display, and kept while nothing changes that it depends on
ledger   the page of it, and summaries
"""
