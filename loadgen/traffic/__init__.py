"""Draw send times and build request bodies before the first request leaves."""
