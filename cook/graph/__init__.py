"""Steps, their keys, the store that keeps them, and the order they run in."""
