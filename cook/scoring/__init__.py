"""Arithmetic over arrays: simulate the engines' drafting loop, price it, compare candidates."""
