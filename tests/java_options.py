"""The JVM options of the tests. During the tests, Python and several JVMs share two cores."""

from __future__ import annotations

JAVA_FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-XX:ArchiveRelocationMode=0",
)
"""For a command: without the optimizing compiler and the threads of a large collector, which in the minutes that
a test's JVM lives take more of the processor than they save. Without the optimizing compiler, Java keeps at most 48 MiB
of compiled code. In the Spark session of a whole test run, Java compiles more code. With this limit, Java discarded
code and compiled it again, which took a fifth of its time. Java maps the archive of Spark's classes (200 MB) at the
address for which it was made. At a random address, Java would have to change all pointers in the archive.
"""

JAVA_OPTIONS = {"JDK_JAVA_OPTIONS": " ".join(JAVA_FLAGS)}
"""JAVA_FLAGS for the environment of a process that starts a JVM."""
