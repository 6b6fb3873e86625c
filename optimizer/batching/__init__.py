"""Make a model's batch dynamic, and prove that the results stay the same."""
