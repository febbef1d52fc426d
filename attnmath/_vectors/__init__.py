"""Test vectors for programs in any language.

cases     what each is for, how its numbers are made, and the list
exact     a head with 150 decimal digits
numbers   those on which formulas run unchanged: 150 digits, or a rounding in every operation
variants  the same for rotations, norms, caps, slopes, tables, sinks, sigmoids, latents
files     tensors, allowed errors and the index, written
"""
