"""Stores files in HDFS, by the package hdfs-native. No JVM is needed.

HDFS is configured in the same way as for any other HDFS program: core-site.xml and hdfs-site.xml in HADOOP_CONF_DIR,
HADOOP_USER_NAME, and a Kerberos ticket. Storage options with names that begin with `dfs.`, `fs.` or `hadoop.` replace
the settings of these files.

A new folder gets the permissions of its parent folder. So several users can share a root if the root's folder lets each
of them write.

Every file is first written under a temporary name in its folder, synced and closed, and then renamed. The NameNode
renames a file as a whole, and only if the new name is free. So other processes see all of a file or nothing, and
exactly one of several writers gets a name. A writer that dies leaves a file with a temporary name. No listing shows the
file; a sweep deletes it after `lakelog.sweep.delay.ms`.

The reply of a rename can be lost, and hdfs-native itself repeats a call after a lost connection. So after every error
of a rename, put_new finds out whether the rename has happened: it deletes the temporary file. If the NameNode says that
it deleted the file, the rename did not happen, and can no longer happen. Otherwise, put_new reads the file that has the
final name.

**Durability.** hsync returns after each DataNode of a block has forced the bytes to its disk. hsync concerns one block,
so a large file is synced at the end of each block. close returns after the NameNode has heard from
`dfs.namenode.replication.min` DataNodes (default: 1) that they have the block. The NameNode writes each change of a
name to its journal before it replies. So a file survives a power cut of the NameNode. It also survives a power cut that
hits all DataNodes of a block except one. If a power cut hits all DataNodes of a block within seconds after the close,
then their file systems can lose the name of the block's file. `dfs.datanode.synconclose=true` (a setting of DataNodes)
prevents this.

**Time.** hdfs-native waits for a NameNode without a time limit. So each call runs in its own thread, and after
`dfs.client.socket-timeout` (a storage option in milliseconds, default 60000) the caller gets StorageUnavailableError.
Large files are written and read in pieces, and each piece is one call. If a rename has no reply, put_new waits twice as
long: it also tries to delete the temporary file.

The NameNode often has not yet heard from a DataNode when hdfs-native closes the file. Then hdfs-native waits for half a
second. This wait happens nearly always if a block has only one replica, and seldom otherwise.
`dfs.namenode.file.close.num-committed-allowed=1` (a setting of the NameNode) prevents this wait if a block has several
replicas.

The NameNode notices a dead DataNode after ten minutes by default. Until then, each new block that the NameNode places
first on this DataNode fails: hdfs-native does not ask for another DataNode. The put is then repeated with a new file.
If the last attempt fails too, the put fails. Reads use the other replicas.
"""
