"""Studies: questions that several comparisons answer, into one small table."""
