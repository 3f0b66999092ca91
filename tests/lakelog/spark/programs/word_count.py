"""Counts the words of a topic's values, as a stream with a consumer group: python word_count.py SERVERS TOPIC OUT."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import explode, split

servers, topic, out = sys.argv[1:]
spark = SparkSession.builder.appName("word count").getOrCreate()
lines = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", servers)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("kafka.group.id", "word-count")
    .option("maxOffsetsPerTrigger", 40)
    .load()
    .selectExpr("CAST(value AS STRING)")
)
words = lines.select(explode(split(lines.value, ":")).alias("word")).groupBy("word").count()
query = words.writeStream.outputMode("complete").format("memory").queryName("words").trigger(availableNow=True).start()
query.awaitTermination()
spark.table("words").coalesce(1).write.json(out)
