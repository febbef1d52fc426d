"""Attention for PyTorch, differentiable twice, in memory that grows with n + m."""
