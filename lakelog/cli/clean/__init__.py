"""The commands that clean: plan, compact, merge."""
