"""The commands that clean: plan, compact, merge, log-manager."""
