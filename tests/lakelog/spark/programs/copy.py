"""Copies the records of one topic that have a key into another topic: python copy.py SERVERS TOPIC TARGET CHECKPOINT."""

import sys

from pyspark.sql import SparkSession

servers, topic, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.appName("copy").getOrCreate()
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribePattern", f"{topic}$")
    .option("startingOffsets", "earliest")
    .option("includeHeaders", "true")
    .load()
)
query = (
    records.where("key IS NOT NULL")
    .select("key", "value", "headers", "partition")
    .writeStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("topic", target)
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
