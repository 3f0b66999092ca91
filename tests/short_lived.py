"""For jobs that tests start in processes of their own, and that end soon."""

from __future__ import annotations

JAVA_OPTIONS = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For the environment: a JVM without the optimizing compiler and the threads of a large collector, which in half a minute
take more of the processor than they save."""
