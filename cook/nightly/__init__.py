"""Pipelines of recipes and engines, run night after night, remembered and judged by gates."""
