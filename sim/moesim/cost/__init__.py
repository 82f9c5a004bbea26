"""How long things take: pure functions of arrays, in seconds and bytes."""
