"""What the tests of the engine share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Deadlines measure the machine, which others use as well; the first example also loads kernels.
settings.register_profile(
    "lakelog", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.load_profile("lakelog")
