"""Where our own packages are: at the top in a checkout, below `sas` where the wheel is installed."""

NAMESPACE = __name__.removesuffix("domain.namespace")
"""What stands before their names."""
