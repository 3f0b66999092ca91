"""Reads some offsets of a topic as one batch, and writes them as JSON: python batch_read.py SERVERS TOPIC OUT."""

import json
import sys

from pyspark.sql import SparkSession

servers, topic, out = sys.argv[1:]
spark = SparkSession.builder.appName("batch read").getOrCreate()
records = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", topic)
    .option("startingOffsets", json.dumps({topic: {"0": 17, "1": -2, "2": -2}}))
    .option("endingOffsets", json.dumps({topic: {"0": 55, "1": 4, "2": -1}}))
    .option("includeHeaders", "true")
    .load()
)
texts = records.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "partition", "offset", "timestamp")
texts.where("offset % 2 = 1").coalesce(1).write.json(out)
