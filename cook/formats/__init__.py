"""File formats of the llama.cpp family: GGUF, imatrix, KLD base, quant types, file names."""
