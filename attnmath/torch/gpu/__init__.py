"""Attention and its derivatives to second order as Triton kernels.

launch   calls of the kernels: what they are given, and what comes back
blocks   how large a tile is
forward  the output with its log-sum-exp, and with its tangent
rows     the tangents of the output and of the gradient of the queries
columns  the tangents of the gradients of keys, values and a bias
entries  what the last two do entry by entry
tile     one tile of the scores: what is read, capped, added, hidden and dropped there
"""
