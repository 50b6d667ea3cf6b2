"""The commands `lab`, `drill`, `sample` and `cdnow`: entry points of `backfill-assets`."""
