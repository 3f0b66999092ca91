"""Names, reads and extends the files of one partition, and decides which records and segments the partition keeps."""
