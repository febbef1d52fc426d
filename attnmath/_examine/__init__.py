"""Is my attention right, and if not, which term is wrong?

problems    problems, their right answers, and how far these may be off
contract    calling what is examined, and what it must keep to
mistakes    the mistakes that have a name
diagnosis   what is wrong, and why
report      what was found, and how it is told
layer       the same for a whole layer
second      the same for a tangent and a double backward
examine     the function that is called
"""
