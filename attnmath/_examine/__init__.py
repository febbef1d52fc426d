"""Is my attention right, and if not, which term is wrong?"""
