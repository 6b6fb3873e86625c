"""Check that a variant is close enough to fp32."""
