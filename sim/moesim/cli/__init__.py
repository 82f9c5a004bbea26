"""The command line; nothing else prints."""
