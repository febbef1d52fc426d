"""The formulas of the book, one module a topic."""
