"""Contains the documentation, and the program that generates three of its pages: `python -m docs.generate`."""
