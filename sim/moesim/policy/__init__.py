"""What is decided: roles, each one object with one method, that see only a View."""
