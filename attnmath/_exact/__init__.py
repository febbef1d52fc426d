"""Exact arithmetic: numbers of finite fields, and what they prove.

primes     large primes, roots and fractions modulo them, and which roots are new
outcomes   a proof, an operation that is not there, or that another point is needed
entries    what numbers and infinity have in common; infinity, the score of a key that is hidden
numbers    rational functions of letters, at a random point
field      the letters and constants of a point
point      its functions: exponentials, sines, roots, logarithms, maxima
arrays     NumPy arrays of such numbers, and their derivatives
functions  what NumPy's functions do with them; linear algebra
sides      two sides, run side by side, and where they differ
floats     both sides again in float64
prove      are both sides the same function?
"""
