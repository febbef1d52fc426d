CASTS = ("head",)
