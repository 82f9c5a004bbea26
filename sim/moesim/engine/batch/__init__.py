"""Which requests run next, and the KV blocks they hold."""
