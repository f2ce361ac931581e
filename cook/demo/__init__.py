"""The demo models: a small, really trained pair of Ling's architecture."""
