"""The engines: llama.cpp and ik_llama.cpp behind one base class, their tools, server and worker."""
