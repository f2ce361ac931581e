"""The worker: one small C program against an engine's own library, and its client."""
