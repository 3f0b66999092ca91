"""Gives a test a root in each kind of store, whatever LAKELOG_TEST_STORE is.

`make test` runs such a test on S3. `make test-stores` also runs the test on Azure and on HDFS, because only `make
test-stores` starts these servers.
"""

from __future__ import annotations

import pytest

from tests.servers.minicluster import HdfsCluster
from tests.servers.object_server import ObjectServer
from tests.stores import environment, new_bucket

EACH_STORE = ("s3", *(pytest.param(name, marks=pytest.mark.stores) for name in ("azure", "hdfs")))


@pytest.fixture(params=EACH_STORE)
def stored_root(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URI of a root without files, which this process and the processes that it starts can open."""
    if request.param == "hdfs":
        cluster: HdfsCluster = request.getfixturevalue("hdfs_cluster")
        return f"{cluster.uri}{request.node.name.partition('[')[0]}/root"
    server: ObjectServer = request.getfixturevalue(request.param)
    bucket = new_bucket(server)
    for name, value in environment(server, bucket).items():
        monkeypatch.setenv(name, value)
    return f"{server.uri_of(bucket)}/some/root"
