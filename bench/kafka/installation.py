"""The folder that `make bench-kafka-jars` fills: jars of the broker and of Spark, and a Python.

Knows its layout, and the environment that its programs need. Does not know what they do.
"""

import os
from pathlib import Path
from typing import NamedTuple

from zenlake.spark.local_session import java_home

VARIABLE = "ZENLAKE_KAFKA"  # Environment variable: the folder.
ROOT = Path(__file__).parents[2]
OTHER_SPARK = ("SPARK_", "PYSPARK_")  # Prefixes of variables that belong to zenlake's Spark.


class NotInstalledError(RuntimeError):
    """The folder is not named or lacks a part; the text says how to get it."""


class Installation(NamedTuple):
    """The parts of the folder."""

    broker: Path
    spark: Path
    python: Path

    @classmethod
    def find(cls) -> "Installation":
        """Return the installation that the environment names. NotInstalledError: there is none."""
        name = os.environ.get(VARIABLE)
        if not name:
            raise NotInstalledError(f"{VARIABLE} is not set; {remedy('FOLDER')}")
        folder = Path(name).absolute()
        found = cls(folder / "broker", folder / "spark", folder / "venv" / "bin" / "python")
        for part in found:
            if not part.exists():
                raise NotInstalledError(f"{part} is missing; {remedy(name)}")
        return found

    def environment(self) -> dict[str, str]:
        """Return the variables for programs of the folder: its Spark is another than ours."""
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(OTHER_SPARK)
        }
        variables |= {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": str(self.python),
            "SPARK_DIST_CLASSPATH": f"{self.spark}/*",  # Behind the jars that Spark brings.
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        home = java_home()
        return variables if home is None else {**variables, "JAVA_HOME": str(home)}


def remedy(folder: str) -> str:
    """Return how to fill the folder and how to name it, as commands."""
    return (
        f"run make bench-kafka-jars {VARIABLE}={folder} (it needs mvn and 1 GB), "
        f"then measure with {VARIABLE}={folder}"
    )
