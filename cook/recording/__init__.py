"""Recording a trace: what the target says over a prompt set, through the worker or over HTTP."""
