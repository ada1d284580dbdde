"""`make bench`: what an operation costs, beside other servers that do the same work. See README.md."""
