"""Calling what is examined, in its own library's arrays, and what it must keep to.

functions  a function: found by its name, with its libraries; what may go wrong
worker     the thread in which it is called, as it may hang
state      what it may change beside its numbers: given back, and said
libraries  arrays of NumPy, PyTorch and JAX, and their gradients
contract   which axis is which, and what is watched in every call, whatever the numbers are
attempt    one call, there and back
candidate  somebody's attention, and how it is called
"""
