"""What the field has instead of recipes: scripts, rule lists, ``.recipe`` files; read and written."""
