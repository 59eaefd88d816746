"""What other tools computed for traces, a module a tool or format."""
