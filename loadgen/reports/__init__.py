"""One finished load test as files and on the terminal; all of them are drawn from the same record."""
