"""The same script on Sail, a server of Spark Connect without a JVM that ends with the process."""

import os
import runpy

from pysail.spark import SparkConnectServer

if __name__ == "__main__":
    server = SparkConnectServer()
    server.start(background=True)
    host, port = server.listening_address
    os.environ["SPARK_REMOTE"] = f"sc://{host}:{port}"
    runpy.run_path("job.py", run_name="__main__")
