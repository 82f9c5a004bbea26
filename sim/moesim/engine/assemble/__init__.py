"""From the tokens of a pass to a priced micro-batch."""
