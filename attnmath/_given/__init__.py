"""Is the input what it should be? One checker, which reads the annotations of the arguments.

letters    what formulas are given: arrays of these shapes, and which values they may hold
arguments  what the annotations of a function say about its arguments
kinds      arrays of floating-point numbers, of one library and one precision
checked    the checker, and the sentences for what is refused
masks      what the functions of masks are given
"""
