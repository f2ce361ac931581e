"""Scoring drafts from arrays: simulate the engines' drafting loop, price it, and compare."""
