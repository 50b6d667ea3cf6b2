"""How Spark commits on S3: Delta's log store with conditional PUTs."""

from __future__ import annotations

from backfill_assets.engine.java_sources import JavaSource

#: The setting of Spark that names the log store of `s3a://`, and ours, in place of Delta's own.
LOG_STORE = "spark.delta.logStore.s3a.impl"
LOG_STORE_CLASS = "backfill_assets.ConditionalLogStore"
#: It extends a class of Delta's jars.
LOG_STORE_SOURCE = JavaSource("ConditionalLogStore.java", "conditional-log-store.jar")
