"""The jars that a session may load: their SHA-256, and the sources of those built here."""

import hashlib
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from backfill_assets.spark.processes import use_jvm_environment

#: The content decides: a copy made by hand may have another name. For a new version: the SHA-256 of
#: the downloaded jars, after comparing their SHA-1 with those beside the jars at Maven Central (or
#: their signatures).
SHA256 = {
    # Built here, see `JavaSource`.
    "conditional-log-store.jar": (
        "dfbb7889d84052e4ef5948d371b0b98537a39a4eff4fe3001234a3e4bd5c2c02"
    ),
    "task-times.jar": "da5c81faa7b621ea9713e3607cd496d85ff135c4f3a2124f62e5d27e00fc68be",
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
    # The file systems of Azure and Google Cloud Storage.
    "hadoop-azure-3.5.0.jar": "220b5db238b82437960e4b81c7e3eefa4eff2a03ad502887497f11d0ad86e663",
    "gcs-connector-4.0.4-shaded.jar": (
        "dfb5832738686436e597026a8e4bab01aa22e75ebfb15d37d096981f6599d73c"
    ),
    # S3's file system.
    "hadoop-aws-3.5.0.jar": ("66bd9eefb938b1a1657487324b63c13df2d8b17164a1dd24e0ef37b905bc5baa"),
    "reactive-streams-1.0.4.jar": (
        "f75ca597789b3dac58f61857b9ac2e1034a68fa672db35055a8fb4509e325f28"
    ),
    "annotations-2.35.4.jar": ("6f36bd87155d1dd85d6efbdd29e532e3759a022211feb71affebee1aa34f04b8"),
    "apache-client-2.35.4.jar": (
        "6eade21b482724ed0a4613eaa95d20e47e7a81304bd28538ac427fece94a7740"
    ),
    "arns-2.35.4.jar": ("c63cc29f76a8527e9e10b621703163df541dc5cb315508dc2898518602c75380"),
    "auth-2.35.4.jar": ("6b601323004833fb4a857ffc95db4795e0e6320eb93e64b1246c655c9ff04994"),
    "aws-core-2.35.4.jar": ("fdb5fc8f1a48d97fa7d04d3460fb42f6973c7b1bbe1b9d317871ef0162bcb623"),
    "aws-json-protocol-2.35.4.jar": (
        "d15dccce10d41c997be458ed897e3837bc7d4243a4baa7debeb5d963d12c672b"
    ),
    "aws-query-protocol-2.35.4.jar": (
        "9b4cf9b78977cc9f5b4ceae9c435dedbde6a055a0f8d9e053eaca945715e2a9f"
    ),
    "aws-xml-protocol-2.35.4.jar": (
        "4f59176da2522c357b1993e4a890fde529f12f365795ef86269bde4a3984cd0d"
    ),
    "checksums-2.35.4.jar": ("94464af4374d08ecf33ca06ed4d03e1615529e547726e26b56abacefbeee7948"),
    "checksums-spi-2.35.4.jar": (
        "88b5af85ac2d3c862be8856be4e683ab31932e4a5a3c1c45af864d2671ac7cec"
    ),
    "crt-core-2.35.4.jar": ("2c6aaa17bf9ccbb9d962dded4351e73decb197e3c5519970e0dae17e05d3df62"),
    "endpoints-spi-2.35.4.jar": (
        "ef02441bda916959b8341290b49c68cc35538e1ad6f8629b75d8334dc6653e00"
    ),
    "http-auth-2.35.4.jar": ("3ec933a06e751a05e195eb3589209e23c44e1897263b6fcae34ef4cc63cd4491"),
    "http-auth-aws-2.35.4.jar": (
        "c4acb92fdec90bfd9b67bfab8e41b69cd152c03cacc10281a8ab464791856e01"
    ),
    "http-auth-aws-eventstream-2.35.4.jar": (
        "709107552f302be3fa9e05969a3779f5c0f07fb809e6fa1fa571a6f0c61326dd"
    ),
    "http-auth-spi-2.35.4.jar": (
        "4495463406bb98eb136f2c3f3604ed5f08ec9974ebc3f34f2121b20679f61d5c"
    ),
    "http-client-spi-2.35.4.jar": (
        "728be89b2a07b595edb0adee3a2cbbbdd4cb1f4caddde0d08c3979fe2620dedb"
    ),
    "identity-spi-2.35.4.jar": ("188d73db7d4e2361654bc3c5a1b3eaeb445d0500fb012cc46c5d67975adf97bf"),
    "json-utils-2.35.4.jar": ("80d67a6bb3e7eb49c7d4b6e4ba4c1463ed7da0192b795158328602dc131c5ecc"),
    "metrics-spi-2.35.4.jar": ("c2a4ee90a21081317e2e6eba0c414d05d3d518aed2f86b1c1710a7367b450487"),
    "netty-nio-client-2.35.4.jar": (
        "b82f8b33e5c85273a47da45ede884d7ccb31c9c2f69e6910a76c5c48fa1275dc"
    ),
    "profiles-2.35.4.jar": ("0f4ef7ca72ccd80dd49ebeaf7f3ce60a7d7a00da59a91aeeae6e91052bbacbd8"),
    "protocol-core-2.35.4.jar": (
        "f2532eca6ba2142fe4821d5decb03c83a3e15dc8bfae2240e7f2efa75f9868b5"
    ),
    "regions-2.35.4.jar": ("77eae87b34ce96ecdf916a9bc06684dbeafcb6d38ef0513285fa5d5d6d41f5ca"),
    "retries-2.35.4.jar": ("f99fb2f8c66d7e859955b3542d3af8f9de8f23a21d5e3250f0f2c5f18487e469"),
    "retries-spi-2.35.4.jar": ("668638751d059c527ddd41ffa4dcebe36a7c14860ed56776df09b861c14dc7dd"),
    "s3-2.35.4.jar": ("f23532c5223be9b0bfec0d72837ed09ed34dbdf8022818ba145b20076a78b4bc"),
    "s3-transfer-manager-2.35.4.jar": (
        "0eec78870b3d0abc509a847072cf963cb2ae6e360dc6161a9449b3398c470476"
    ),
    "sdk-core-2.35.4.jar": ("fa559a4ce598852f3519c8f3b36250f583b0858a7611eedc4a81997778c617f4"),
    "sso-2.35.4.jar": ("a404c3d77e1d8c76e28741faa01423ccaf124cbdbb4d393d62912e323659b8c9"),
    "sts-2.35.4.jar": ("8d0f7816d3f96e3f00249f5d054d926e939a104bcf9ef57676ee0b16c59684d2"),
    "third-party-jackson-core-2.35.4.jar": (
        "32f4252c6c2df8f3a4aff885e6dc77024ad6b4cb48455d07b461ec30c41643ea"
    ),
    "utils-2.35.4.jar": ("642aeef536a071668f0b772f05f9d21573abf6955e7b6fb5fdb893760cca10e8"),
    "utils-lite-2.35.4.jar": ("e004806def5e22ec98edc48a133ff3317166255e1ba29d93d129e9fdfa64a7be"),
    "eventstream-1.0.1.jar": ("0c37d8e696117f02c302191b8110b0d0eb20fa412fce34c3a269ec73c16ce822"),
    "analyticsaccelerator-s3-1.3.1.jar": (
        "4959a9747cbb479c73c3ffbcd479bee5b014f8b2880994585a8693fb9d24675e"
    ),
}


def unknown_jars(jars: Iterable[Path]) -> list[Path]:
    """The jars whose content is not one of the known ones."""
    known = set(SHA256.values())
    return [jar for jar in jars if hashlib.sha256(jar.read_bytes()).hexdigest() not in known]


#: The target version of the classes, so that a jar is the same on each Java that Spark runs on.
_TARGET_JAVA = 8


@dataclass(frozen=True)
class JavaSource:
    """A Java source file in this module's folder, and the name of the jar of its classes."""

    file: str
    jar: str

    def jar_in(self, cache: Path) -> Path:
        """The path of this source's jar in the jar cache, built or not."""
        digest = hashlib.sha256(self._source_path.read_bytes()).hexdigest()
        return cache / f"{Path(self.jar).stem}-{digest[:12]}" / self.jar

    def build_jar(self, cache: Path, libraries: Sequence[Path] = ()) -> Path:
        """Compile the source, unless that is done, with the compiler that is part of Spark.

        So no Java development kit is needed. The classpath is Spark's, and the libraries.
        """
        jar = self.jar_in(cache)
        if not jar.exists():
            jar.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                new_jar = Path(scratch, jar.name)
                with ZipFile(new_jar, "w", ZIP_STORED) as archive:
                    for name, content in sorted(
                        compile_source(self._source_path.read_text(), libraries).items()
                    ):
                        # A current date would change the jar each time.
                        entry = ZipInfo(f"{name.replace('.', '/')}.class", (1980, 1, 1, 0, 0, 0))
                        archive.writestr(entry, content)
                new_jar.replace(jar)
        return jar

    @property
    def _source_path(self) -> Path:
        return Path(__file__).with_name(self.file)


def compile_source(source: str, libraries: Sequence[Path]) -> dict[str, bytes]:
    """The classes of a source by name, compiled against Spark and libraries in a JVM of its own."""
    from pyspark.java_gateway import launch_gateway

    with use_jvm_environment("local"):
        gateway = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})
    try:
        jvm = gateway.jvm
        urls = gateway.new_array(jvm.java.net.URL, len(libraries))
        for index, jar in enumerate(libraries):
            urls[index] = jvm.java.io.File(str(jar)).toURI().toURL()
        spark = jvm.Thread.currentThread().getContextClassLoader()
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setTargetVersion(_TARGET_JAVA)
        compiler.setParentClassLoader(jvm.java.net.URLClassLoader(urls, spark))
        compiler.cook(source)
        return {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
