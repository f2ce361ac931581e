"""The prompt sets on which drafts are scored, and their loader."""
