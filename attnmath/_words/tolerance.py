"""The tolerances by which gradients and formulas are judged, each with its reason.

What merely recognises something, a convention of a library or the rule of another checker
in _examine, has its number where it is used.

A rounded sum of N terms is off by at most (N - 1) u times the sum of their magnitudes,
not times the result: the terms may cancel. So each tolerance below is a number of
roundings, and is multiplied by u and by the magnitude that was summed up.
"""

# The unit roundoff of float64: the relative error of one operation is at most u.
UNIT_ROUNDOFF = 2.0**-53

# Check of a gradient or a tangent, times u and the magnitude: the largest sum of
# magnitudes for any entry, or the output itself if that is more, for an argument that
# moves by its own size (or by 1). Less than a rounding of the output, nothing can see:
# where softmax saturates, large terms cancel inside of every formula. Both sides make
# some dozens of roundings, and exp turns the rounding of a score of size 30 into 30.
# Measured on 1,300 random heads, 6,600 gradients, scores of size 0.1 to 30: the largest
# error was 43 roundings up to scores of size 10; above, one gradient had more than 128.
# Seen from the other side, a gradient off by one part in 10^12 is refused.
ROUNDINGS = 128

# The same check where the problem is worse conditioned than that: inputs that differ by
# one rounding may differ that much in their gradients, and neither is wrong. The change
# that two such draws cause is measured, and this many times its size is allowed, since
# an algorithm rounds more often than its inputs. In the measurement above, 2 sufficed.
CONDITION = 4

# Does a function react to its argument? A central difference moves it by the step
# below, which changes the output by about the step, relatively; rounding changes it by
# u. The threshold is the geometric mean of the two.
CENTRAL_STEP = 2.0**-17
REACTION = 2.0**-35

# Whose side does the central difference take? Its own error is about 1e-10; it takes a
# side if it is a thousand times nearer to one of two numbers than to the other.
SIDE = 1e-3

# Does the complex step see all of a derivative? |z| in the place of z hides a part of the order of
# the derivative itself; where differences of two steps disagree, a kink or a curve does so.
UNSEEN = 1e-2

# A displayed formula, both sides evaluated on small random matrices: the same dozen
# operations with sums of at most some tens of terms, relative to the magnitude summed.
# 512 roundings. The ledger says the largest error met; one wrong symbol makes an
# error that is larger by many orders, as trying all of them shows (make misprints).
PAGE = 2.0**-44

# Two sides differ exactly, and contain logarithms, whose relations exact arithmetic does
# not all know. If they agree at a point of real numbers up to this, relative to their
# size, the answer is "undecided" and not "refuted". It is thousands of roundings, since
# such expressions are deep; a formula that is off by less is not refuted then.
CLOSE = 1e-12

# What was said of letters is looked at in float64 as well, beside the other side or beside central
# differences: do they differ clearly? Relative to the largest entry, or to what is summed up; and
# an absolute share. Both are far above rounding, and far below what most mistakes cause.
CLEARLY = 1e-4
NEARLY_ZERO = 1e-9

# Is somebody's attention right (attnmath.examine)? Errors are counted in the bounds of
# chapters/rounding.md, entry by entry. They are a theorem, so 1 is enough, and nothing is
# left to choose. What programs that are right come to: see chapters/examine.md.
CONSTANT = 1.0

# In bfloat16 and float16 also over many entries: the root mean square of a row, and the
# factor of which a head or a whole gradient is too large. Roundings that are independent
# scatter; their deviation is computed for a program that rounds every array. A program that
# also keeps its log-sum-exp short errs in a whole row at once: such programs came to nine
# deviations in a thousand random problems, all others to three. A row of zeros comes to a
# hundred.
DEVIATIONS = 18.0

# Weights that are nearly equal are rounded alike, and then their error is a factor, of one
# rounding. What is beyond it counts.
ALIKE = 1.0

# Roundings of the scores move the weights by factors. Where these scatter by more than a
# twentieth, deviations no longer add up as squares, and only single entries are judged.
SCATTER = 0.05

# A layer in bfloat16 or float16 (attnmath.examine_layer): the bound of a number that a dozen
# steps lead to is far above its error, since roundings seldom all go one way. Over an array
# of sixteen numbers or more the root of the sum of the squared errors may be this part of
# that of the bounds. Layers that are right came to 0.037 at most, in 2,300 random problems
# in each of the two formats; a dX that misses one of its paths, to 0.18 in bfloat16.
SHARE = 0.1

# Two trainings of the same small transformer, by the same steps of Adam and in float64, with
# two programs of attention that are right: their losses relative to the largest, their weights
# relative to their norms. They come apart by their roundings, which every step may amplify. After
# 120 to 240 steps with three objectives the measured differences are 3e-15 at most; other
# processors round otherwise. A wrong term in an objective moves the weights by a thousandth and
# more within some steps.
TRAINED = 1e-12

# Second derivatives, and attention for PyTorch, against autograd of the definition, both in
# float64: the largest error of an array relative to its largest number, or to 1 if that is
# more (the inputs are of that size, and terms may cancel to 0). Both sides are right up to
# roundings of sums of some tens of terms. In 1,000 random problems each the drop-in came to
# 5e-14 at most, in seven orders of differentiation, and the functions for arrays to 5e-13; a term
# that is missing makes an error of a thousandth and more.
DROP_IN = 1e-11

# A tangent or a double backward in bfloat16 or float16 (attnmath.examine): where two differences
# follow each other its bounds are larger than its numbers. The root mean square of the error of a
# head may be this many times that of a typical error, which is measured by rounding every array at
# random. Programs that are right came to 1.8 at most, in 1,000 random problems each and both
# formats; a term that is missing comes to some dozens.
SECOND_SCATTER = 4.0
