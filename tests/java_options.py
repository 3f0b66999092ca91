"""How the JVMs of tests run, which share two cores with one another and with Python."""

from __future__ import annotations

JAVA_OPTIONS = {
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
}
"""For the environment: without the optimizing compiler and the threads of a large collector, which in the minutes that a
test's JVM lives take more of the processor than they save."""
