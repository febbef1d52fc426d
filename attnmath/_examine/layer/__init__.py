"""Is my layer right, and if not, which term is wrong?

layer           a layer as it is known, a problem, what it returns; its steps, forward and back
ready_layers    those of PyTorch and of transformers
weight_layouts  the weights of a layer of one's own: which is which, and how their numbers lie
running_error   is what came right? numbers with a bound on what a correct program may have them off
run             what a layer is given, and what its own library makes of it
wrong_matrices  mistakes of its weights: heads, matrices, blocks
mistakes        mistakes of its tokens, sums and biases; and all together
conventions     what a layer means
diagnosis       which mistake is it? laws that hold or not, and the terms of a wrong gradient
examine_layer   the examination, its report, and the smallest problem that fails
"""
