"""Undocumented parts of PySpark: the installed release has them, and a missing one is explained."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyspark
import pytest

from tests.support.processes import python_environment
from zenlake.errors import ZError
from zenlake.lake.pipeline import pyspark_internals

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

NAMES = (
    ("pyspark.pipelines.cli", "load_pipeline_spec"),
    ("pyspark.pipelines.cli", "register_definitions"),
    ("pyspark.pipelines.cli", "log_with_curr_timestamp"),
    ("pyspark.pipelines.spark_connect_pipeline", "create_dataflow_graph"),
    ("pyspark.pipelines.spark_connect_pipeline", "start_run"),
    (
        "pyspark.pipelines.spark_connect_graph_element_registry",
        "SparkConnectGraphElementRegistry",
    ),
    ("pyspark.java_gateway", "launch_gateway"),
    ("pyspark.sql.connect.proto", "Command"),
)


@pytest.mark.process
def test_the_installed_pyspark_has_every_name() -> None:
    """In a process of its own: a test before this one may have broken off an import of PySpark."""
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from zenlake.lake.pipeline.pyspark_internals import _find\n"
        f"print(all(callable(_find(*name)) for name in {NAMES!r}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.stdout == "True\n", found.stderr


@pytest.mark.parametrize(
    ("module", "name", "call"),
    [
        (
            "pyspark.pipelines.cli",
            "load_pipeline_spec",
            lambda: pyspark_internals.load_spec(Path("x.yml")),
        ),
        (
            "pyspark.pipelines.spark_connect_pipeline",
            "start_run",
            lambda: pyspark_internals.start_run(None, "graph", "file:/x"),
        ),
    ],
)
def test_a_missing_function_is_an_error_with_a_remedy(
    module: str, name: str, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    with pytest.raises(ZError) as raised:
        call()
    assert f"PySpark {pyspark.__version__}" in str(raised.value)
    assert f"{module}.{name}" in str(raised.value)
    assert f"pip install 'pyspark[pipelines]=={pyspark_internals.TESTED}.*'" in str(raised.value)


def test_a_missing_module_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ZError, match=r"no_such_module.*pip install"):
        pyspark_internals._find("pyspark.no_such_module", "run")


def test_a_gateway_is_forgotten_only_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark_internals.forget_gateway()
    assert pyspark.SparkContext._gateway is None
    monkeypatch.delattr(pyspark.SparkContext, "_jvm")
    with pytest.raises(ZError, match=r"SparkContext\._jvm\): pip install"):
        pyspark_internals.forget_gateway()


def test_a_classic_data_frame_needs_no_schema() -> None:
    classic, connect = SimpleNamespace(), SimpleNamespace(_cached_schema=None)
    pyspark_internals.preset_schema(classic, "columns")
    pyspark_internals.preset_schema(connect, "columns")
    assert not hasattr(classic, "_cached_schema")
    assert connect._cached_schema == "columns"
