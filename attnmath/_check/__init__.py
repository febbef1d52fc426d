"""Is a derivative right? The complex step and exact arithmetic decide; they know no formula.

problem  a function at a point, its derivatives by the complex step, and what a rule returned
check    check_vjp and check_jvp
exactly  both proved, at a random point of a finite field, and beside f in float64
"""
