"""Gives the columns of an exported table the descriptions of the model's fields."""
