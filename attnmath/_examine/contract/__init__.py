"""Calling what is examined, in its own library's arrays, and what it must keep to.

functions  a function: found by its name, with its libraries; called in a thread, as it may raise or hang
libraries  arrays of NumPy, PyTorch and JAX, and their gradients
contract   which axis is which, and what is watched in every call, whatever the numbers are
attempt    one call, there and back
candidate  somebody's attention, and how it is called
"""
