"""Other people's judges of a load: they decide over our wire, by their own rules."""
