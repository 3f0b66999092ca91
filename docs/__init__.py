"""The documentation, and the program that writes the generated part of it: `python -m docs.generate`."""
