"""Contains the documentation, and the program that generates two of its pages: `python -m docs.generate`."""
