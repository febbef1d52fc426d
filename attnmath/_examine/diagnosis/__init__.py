"""What is wrong, and why: the stages of an examination.

probes        small problems, and the numbers that are read off the answers
conventions   which layout, mask, alignment and groups a candidate means
repeated      the same problem again: chance, and what is kept from call to call
habits        what a right candidate does at every call, and what it may still do to those who use it
coefficients  a problem that went wrong; multiples of its separate terms, by least squares
diagnosis     which wrong closed form gives what came, or which two
mechanisms    mistakes that are no closed form: strides, formats, thresholds
own_output    another function: are its gradients those of its own output?
read_pieces   what it has beside plain attention: rotations, norms, a cap, slopes, windows, sinks, sigmoids
read_table    a table of biases by distance, and the rule of its buckets
unlisted      is it attention with such pieces, or another function?
paste         a case as lines that can be pasted
smallest      the smallest case that still fails
examination   the stages, in their order
"""
