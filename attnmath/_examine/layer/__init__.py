"""Is my layer right, and if not, which term is wrong?

layer           a layer as it is known, a problem, what it returns; its steps, forward and back
ready_layers    those of PyTorch and of transformers
own_layer       a layer of one's own: its weights, how it is called, what it returns
own_function    one that is none of the list: its own derivatives, or a reference
pieced          one whose heads have rotations, norms, caps, slopes, windows, sinks: its steps, what is read
latent          one whose queries, keys and values come up from latents: its steps, what is read
latent_readings which of its parameters are which matrices
latent_mistakes its mistakes that have a name
weight_layouts  the weights of a layer of one's own: which is which, and how their numbers lie
running_error   is what came right? numbers with a bound on what a correct program may have them off
tried           is what came within it?
draw            what a layer is given
run             what its own library makes of it
mistakes        its mistakes that have a name
conventions     what a layer means
diagnosis       which mistake is it? laws that hold or not, and the terms of a wrong gradient
beside          inference, rows that may attend to nothing, weights that nothing depends on; the smallest problem
examine_layer   the examination and its report
"""
