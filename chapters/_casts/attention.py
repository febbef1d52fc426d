CASTS = ("head", "batch")
