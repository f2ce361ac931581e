"""The search for the best mix of types: spans measured by replay, allocated, verified, judged."""
