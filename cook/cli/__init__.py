"""The command line: one small file a command, and no logic."""
