"""Quantiles of the normal distribution."""

ONE_SIDED_95 = 1.645
"""Standard errors from the middle to a bound that holds with 95 %."""
