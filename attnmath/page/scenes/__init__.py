"""Letters with values, and expressions evaluated in them.

cast        the letters of a chapter, where each value comes from, and which index runs over what
settings    how a cast is filled with numbers
casts       the casts of the book, with what tables and displays say of their letters
values      matrices with the magnitude that was summed up to make them, and operators by name
indexing    letters with their subscripts, sums, derivatives by entries
evaluate    the nodes of a display, functions and blocks
scene       a cast with values for its letters, and the derivatives by them
carried     numbers x + ε y; scenes on NumPy: the complex step, and second derivatives
oracles     scenes on torch, at a random point of a finite field, and where no fact holds
"""
