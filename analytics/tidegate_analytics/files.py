"""The few things the lake does with files beside reading and writing tables, on whatever file system Spark can reach.

They go through Hadoop's file systems, as Spark's own do: a lake may be a local directory, or on HDFS or an object
store that a whole cluster shares. Nothing here needs a rename to be atomic; a file that is there is a fact, and its
name is all it says.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


class Files:
    """A directory."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        # Hadoop's file systems have no Python API; the gateway to them is the one that Spark's own modules use.
        self._jvm: Any = spark._jvm
        self.root = root.rstrip("/") or "/"
        configuration = spark._jsc.hadoopConfiguration()
        self._system: Any = self._at("").getFileSystem(configuration)

    def path(self, name: str) -> str:
        """Where something in it is."""
        return f"{self.root}/{name}" if name else self.root

    def exists(self, name: str) -> bool:
        return bool(self._system.exists(self._at(name)))

    def names(self, name: str) -> list[str]:
        """What is in a directory, sorted; nothing where there is none."""
        if not self.exists(name):
            return []
        return sorted(str(status.getPath().getName()) for status in self._system.listStatus(self._at(name)))

    def matching(self, pattern: str) -> list[str]:
        """What there is like `kind=*/date=*`, relative to this directory, sorted."""
        depth = pattern.count("/") + 1
        found = self._system.globStatus(self._at(pattern)) or ()
        return sorted("/".join(str(status.getPath()).split("/")[-depth:]) for status in found)

    def touch(self, name: str) -> None:
        """Have an empty file be there."""
        self._system.create(self._at(name), True).close()

    def delete(self, name: str) -> None:
        """Have nothing be there."""
        self._system.delete(self._at(name), True)

    def rename(self, name: str, to: str) -> None:
        """Give something another name, which is free."""
        if not self._system.rename(self._at(name), self._at(to)):
            raise OSError(f"{self.path(name)} could not be renamed to {to}")

    def _at(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.path(name))
