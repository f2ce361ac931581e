"""What the field has instead of recipes (scripts, rule lists), read and written."""
