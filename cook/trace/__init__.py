"""Recording what a target says over a prompt set, through the worker or over HTTP."""
