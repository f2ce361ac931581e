"""Recipes: the YAML language, its rules and groups, and everything checked before anything runs."""
