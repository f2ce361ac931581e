"""YAML and TOML with places: every fault of a recipe, a pipeline or a configuration points at its line."""
