"""YAML and TOML with places, so that every fault points at its line."""
