"""Problems, their right answers, and how far these may be off.

case            a problem: its setting, its numbers, what a candidate may mean; answers
taken           which sizes a function takes, and drafts that are made of such
families        problems whose numbers are drawn, in families, sizes and kinds
exact_problems  problems whose right answer has no rounding in it
steps           a head, step by step; a mistake is a step that differs
pieces          a head that has more: rotations, norms, a cap, slopes, tables, windows, sinks, sigmoids
measured        how far its answers may be off, by what roundings of all letters move
bounds          the right answer, how far each entry may be off, and whether what came is as near as that
"""
