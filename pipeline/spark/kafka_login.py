"""Lets Kafka's own parser check the login of a Kafka source, before Spark sees the login.

The option `kafka.sasl.jaas.config` contains a password. If Kafka's client does not understand the option, its exception
quotes a word of the option. If the option is malformed, this word can be the password. Spark prints this exception on
standard error, with each attempt to connect, and stores it in the event log. So the option is checked before the stream
starts, and the error of this check does not contain the word.
"""

from __future__ import annotations

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pipeline.spark.failures import SPARK_ERRORS, without_quoted
from storage_engine.errors import ConfigError

JAAS = "kafka.sasl.jaas.config"


def check_login(spark: SparkSession, line: str, place: str) -> None:
    """Check the value of the option kafka.sasl.jaas.config. If this Spark has no Kafka source, nothing is checked, and
    Spark then reports that the source is missing.

    Raises:
        ConfigError: Kafka does not understand the line. The error does not contain any part of the line.
    """
    jvm = spark._jvm  # noqa: SLF001 - the only way to a class of the JVM
    assert jvm is not None, "the session runs in this process"
    kafka = jvm.org.apache.kafka.common
    if not isinstance(kafka.security.JaasContext, JavaClass):
        return
    options = jvm.java.util.HashMap()
    options.put("sasl.jaas.config", kafka.config.types.Password(line))
    try:
        kafka.security.JaasContext.loadClientContext(options)
    except SPARK_ERRORS as error:
        thrown = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
        # A quoted value may contain a line break. So the whole message is needed here, not its first line.
        reason = without_quoted(str(thrown.getMessage())) if thrown is not None else "the login is malformed"
        raise ConfigError(
            place,
            f"Kafka does not understand the login: {reason}. The value is not shown, because it contains a password",
            'Write the class of the login module, the word required, and options such as username="...", and end with ;.',
        ) from None
