"""Stores files in HDFS, by the package hdfs-native. No JVM is needed.

HDFS is configured in the same way as for any other HDFS program: core-site.xml and hdfs-site.xml in HADOOP_CONF_DIR,
HADOOP_USER_NAME, and a Kerberos ticket. If the name of a storage option begins with `dfs.`, `fs.` or `hadoop.`, the
option replaces the setting in core-site.xml or hdfs-site.xml.

A new folder gets the permissions of its parent folder. So several users can share a root if each user may write to
the root's folder.

Every file is first written under a temporary name in its folder, synced and closed, and then renamed. The NameNode
renames a file as a whole, and only if the new name is free. So other processes see the whole file or no file, and if
several writers create the same name, exactly one writer succeeds. A writer that dies leaves a file with a temporary
name. No listing shows the file; a sweep deletes it after `lakelog.sweep.delay.ms`.

The reply of a rename can be lost, and hdfs-native itself repeats a call after a lost connection. So after every error
of a rename, put_new deletes the temporary file, to find out whether the rename has happened. If the NameNode says
that it deleted the file, the rename did not happen, and can no longer happen. Otherwise, put_new reads the file that
has the final name.

**Durability.** hsync returns after each DataNode of a block has forced the bytes to its disk. hsync concerns one
block, so a large file is synced at the end of each block. close returns after `dfs.namenode.replication.min`
DataNodes (default: 1) have told the NameNode that they have the block. The NameNode writes each change of a name to
its journal before it replies. So a file survives a power cut of the NameNode. A file also survives a power cut of its
DataNodes if at least one DataNode of each block keeps its power. If all DataNodes of a block lose their power within
seconds after the close, their file systems can lose the name of the block's file. `dfs.datanode.synconclose=true` (a
setting of DataNodes) prevents this.

**Time.** hdfs-native waits for a NameNode without a time limit. So each call runs in its own thread. After
`dfs.client.socket-timeout` (a storage option in milliseconds, default 60000), the caller gets
StorageUnavailableError. Large files are written and read in pieces, and each piece is one call. If a rename has no
reply, put_new can wait for twice this time, because put_new also tries to delete the temporary file.

When hdfs-native closes a file, often the NameNode has not yet heard from a DataNode. In this case hdfs-native waits
for half a second. This wait happens nearly always if a block has only one replica, and seldom if a block has several
replicas. `dfs.namenode.file.close.num-committed-allowed=1` (a setting of the NameNode) prevents this wait if a block
has several replicas.

The NameNode notices a dead DataNode after ten minutes by default. Until then, the NameNode can place a new block
first on the dead DataNode. The write of this block fails, because hdfs-native does not ask for another DataNode. The
put is then repeated with a new file. If the last attempt fails too, the put fails. Reads use the replicas on the
other DataNodes.
"""
