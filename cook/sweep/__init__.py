"""Sweeps: pipelines of recipes and engines, run night after night and compared."""
