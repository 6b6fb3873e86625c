"""Code that runs inside Triton's Python backend; it imports nothing of ours."""
