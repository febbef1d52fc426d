"""The vocabulary of the formulas, and what checks need to know of arrays and numbers.

arrays        for every library; what a score of -inf is
layers        tokens of a whole batch in one product, heads in turn
tiles         cut arrays, go over the tiles in turn, put the parts together
named_tuples  arguments that have fields
complex_step  derivatives that nothing cancels in
tolerance     how far off is allowed, with the reasons
extras        what to install for a library that is not there
"""
