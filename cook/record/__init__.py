"""The record: everything one build or score found out, as one versioned document."""
