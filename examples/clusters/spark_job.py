"""Write the two folders that `graphcl build` reads: `spark-submit spark_job.py`."""

from pyspark.sql import SparkSession, functions
from pyspark.sql.functions import col

spark = SparkSession.builder.appName("graphcl-tables").getOrCreate()
calls = spark.read.parquet("calls")  # your own tables: caller, callee, minutes
people = spark.read.parquet("people")  # id, age, region

nodes = people.select(col("id").cast("string"), "age", "region").dropDuplicates(["id"])
edges = (
    calls.select(
        col("caller").cast("string").alias("source"),
        col("callee").cast("string").alias("target"),
        col("minutes").cast("double").alias("weight"),
    )
    .where("source <> target")
    .groupBy("source", "target")
    .agg(functions.sum("weight").alias("weight"))
)
known = nodes.select("id")
for end in ("source", "target"):  # build refuses edges to nodes without a row, or drops them
    edges = edges.join(known.withColumnRenamed("id", end), end, "left_semi")
edges.write.mode("overwrite").parquet("tables/edges")
nodes.write.mode("overwrite").parquet("tables/nodes")
spark.stop()
