"""Decodes the records of a broker's topic __consumer_offsets, in which the broker's group coordinator stores the
groups.
"""
