"""The mistakes that have a name: each is a wrong closed form, said as the steps that differ.

wrong_terms  a factor, a sign, a row term, a transpose, a bias, a softmax
wrong_pieces the way back through rotations, norms, caps, sinks
mistakes     masks, groups, lost tiles, mixed heads, exchanged arguments; and all together

Over ranks:

blocks            which token is on which rank, and what stands in another block
wrong_ranks       keys of another step, contributions that are missing, rows that stand elsewhere
wrong_merges      parts of a row merged wrongly, and D
wrong_rank_masks  masks, skipped blocks, the rest of a length, heads; and all together
"""
