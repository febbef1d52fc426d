"""What chapters and tools alone import.

heads      what attention is compared with; how far a change goes, what an output hangs on
training   a small encoder-decoder and its backward pass
sequences  its task, its steps, and the weights that came out
networks   networks of PyTorch: the same transformer, and objectives with derivatives inside
rules      how others accept a gradient; what single problems see of mistakes
read_off   what libraries mean by their arguments
measured   tables and figure of what a benchmark has measured
notebook   what cells need: style, listings, checks
"""
