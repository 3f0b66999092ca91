"""The files of one partition, and the decisions about them."""
