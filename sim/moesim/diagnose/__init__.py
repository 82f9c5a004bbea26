"""What is wrong with traffic: figures of a routing log, their bounds, and findings."""
