"""The records of a broker's topic __consumer_offsets, in which its group coordinator stores the groups."""
