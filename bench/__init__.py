"""cook's cost, as ratios against the same work done without it: ``python -m bench``."""
