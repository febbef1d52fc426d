"""Is a hand-written tangent, or a double backward, right? Judged as a backward is, beside the same attention.

program  the second derivatives of a head, step by step; what is right, and how far off it may be
calls    a candidate's jvp and vjp_vjp, called as it is itself
edits    steps that differ: terms, factors, what is held still, operands, masks and heads
sums     the same of running sums that are not rescaled, and of the way back through a backward
naming   which of them gives all that came; what can be said where none does
judged   problems, verdict and findings, beside those on the first derivatives
scatter  in a short format, whether the errors of an array together are those of roundings
pasted   the smallest failing case, as lines
"""
