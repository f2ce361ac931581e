"""The Hugging Face Hub: sources come from it, quants go to it.

All requests are huggingface-hub's own; cook adds what is missing: downloads that go on where they
stopped, a checksum for every file, retries with a bound, and errors that say what mends them.
"""
