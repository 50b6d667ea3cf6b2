"""Which jars are known: the SHA-256 of each that an engine loads from the cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

#: The content counts: a copy made by hand may have another name. For a new version: the SHA-256 of
#: the downloaded jars, after a comparison of their SHA-1 with those beside the jars at Maven
#: Central (or of their signatures).
SHA256 = {
    "hadoop-bare-naked-local-fs-0.1.0.jar": (
        "e0cc30fb0531eb0b59468dc0abf5b257533d2365b5e9f45e795edd707aa78c62"
    ),
    "delta-kernel-api-4.4.0.jar": (
        "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"
    ),
    "delta-kernel-defaults-4.4.0.jar": (
        "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"
    ),
    "delta-kernel-unitycatalog-4.4.0.jar": (
        "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
    ),
    "delta-spark_4.2_2.13-4.4.0.jar": (
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
    ),
    "delta-storage-4.4.0.jar": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
}


def unknown_jars(jars: Iterable[Path]) -> list[Path]:
    """The jars that are none of the known ones, by their content."""
    known = set(SHA256.values())
    return [jar for jar in jars if hashlib.sha256(jar.read_bytes()).hexdigest() not in known]
