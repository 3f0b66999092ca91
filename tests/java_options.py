"""The JVM options of tests, in which several JVMs share two cores with Python."""

from __future__ import annotations

JAVA_FLAGS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=256m",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""For a command: without the optimizing compiler and the threads of a large collector, which in the minutes that
a test's JVM lives take more of the processor than they save. Without the optimizing compiler Java keeps 48 MiB of
compiled code; the session of a whole run compiles more. Java then threw code away and compiled it again: a fifth of its
time.
"""

JAVA_OPTIONS = {"JDK_JAVA_OPTIONS": " ".join(JAVA_FLAGS)}
"""JAVA_FLAGS for the environment of a process that starts a JVM."""
