"""The mistakes that have a name: each is a wrong closed form, said as the steps that differ.

wrong_terms  a factor, a sign, a row term, a transpose, a bias, a softmax
wrong_pieces the way back through rotations, norms, caps, sinks
mistakes     masks, groups, lost tiles, mixed heads, exchanged arguments; and all together
"""
