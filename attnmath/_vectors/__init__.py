"""Test vectors for programs in any language.

cases   what each is for, how its numbers are made, and the list
exact   a head with 150 decimal digits
files   tensors, allowed errors and the index, written
"""
