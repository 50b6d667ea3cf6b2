"""Prints the result of a query of each view, as JSON: what a reader of SQLMesh's views sees."""

import json
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.enableHiveSupport().getOrCreate()
rows = {
    view: [list(row) for row in spark.sql(query).collect()]
    if spark.catalog.tableExists(view)
    else []
    for view, query in json.loads(sys.argv[1]).items()
}
print("ROWS " + json.dumps(rows))
