CASTS = ("moves",)
