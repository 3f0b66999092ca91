"""Reads the files of a log into values, before anything is printed."""
