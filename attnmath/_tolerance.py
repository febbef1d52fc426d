"""Every tolerance of the package, each with its reason; no other module has one.

A rounded sum of N terms is off by at most (N - 1) u times the sum of their magnitudes,
not times the result: the terms may cancel. So each tolerance below is a number of
roundings, and is multiplied by u and by the magnitude that was summed up.
"""

# The unit roundoff of float64: the relative error of one operation is at most u.
UNIT_ROUNDOFF = 2.0**-53

# Check of a gradient or a tangent, times u and the largest magnitude summed for any
# entry. Both sides are computed, by a dozen operations in a row whose errors add up,
# with sums of some tens of terms, and an exponential that turns the rounding of a score
# of size 30 into 30 roundings. Over thousands of random heads the largest error was 30
# roundings; a factor of 4 is for problems that are larger. Seen from the other side, a
# gradient that is off by one part in 10^12 is refused.
ROUNDINGS = 128

# The same check where the problem itself is worse conditioned than that: two inputs
# that differ by one rounding may differ that much in their gradients, and neither is
# wrong. The change that such roundings cause is measured, and this many times its size
# is allowed, since an algorithm makes some dozens of roundings and the measurement made
# one.
CONDITION = 16

# Does a function react to its argument? A central difference moves it by the step
# below, which changes the output by about the step, relatively; rounding changes it by
# u. The threshold is the geometric mean of the two, in round numbers.
STEP = 2.0**-17
REACTION = 1e-10

# Whose side does the central difference take? Its own error is about 1e-10; it takes a
# side if it is a thousand times nearer to one of two numbers than to the other.
SIDE = 1e-3

# A displayed formula, both sides evaluated on small random matrices: the same dozen
# operations with sums of at most some tens of terms, relative to the magnitude summed.
# The smallest error that one wrong symbol makes is ten thousand times as large.
PAGE = 2.0**-44
