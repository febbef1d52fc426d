"""Attention whose sequence is spread over ranks: called on each with its own rows, and judged as one function.

rank       what runs on a rank
pool       the ranks as processes of this program; one that dies or hangs is told, and they are begun again
launched   the ranks as processes that torchrun has begun
over       a function of whole tensors that calls another on each rank
candidate  the candidate that is made of it
"""
