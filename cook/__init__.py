"""cook: find the best draft quantization for speculative decoding."""

__version__ = "0.1.0"
