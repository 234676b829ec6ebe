"""Settings of Spark for tests."""

from __future__ import annotations

from typing import Final

SETTINGS: Final = {
    # Tests have little data and many plans: what compiles plans, splits data or optimises the JVM costs more than it
    # saves.
    "spark__sql__shuffle__partitions": "1",
    "spark__default__parallelism": "1",
    "spark__driver__memory": "1g",
    "spark__driver__extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark__sql__codegen__wholeStage": "false",
    "spark__sql__codegen__factoryMode": "NO_CODEGEN",
    "spark__sql__adaptive__enabled": "false",
}
