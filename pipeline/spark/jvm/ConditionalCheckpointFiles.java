package lakelog;

import java.io.IOException;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.UnsupportedFileSystemException;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Writes the files of a stream's checkpoint. conf/spark-defaults.conf sets this class.
 *
 * On S3 a rename is a copy and a deletion, and replaces a file that exists. So on S3 each file is one put, which is
 * conditional for the files that must not exist yet. A crash leaves the whole file or nothing. A second query with the
 * same checkpoint fails instead of replacing a file.
 * On a local disk, this class works like its base class. On other storages, the renames of the base class never replace a
 * file. So there, this class works like the class that Spark chooses by itself, whose renames replace a file if the query
 * wants this. (On a local disk, that class starts a shell for each rename.)
 */
public final class ConditionalCheckpointFiles extends FileSystemBasedCheckpointFileManager {
    private final CheckpointFileManager renaming;

    public ConditionalCheckpointFiles(Path path, Configuration configuration) {
        super(path, configuration);
        renaming = renaming(path, configuration);
    }

    private CheckpointFileManager renaming(Path path, Configuration configuration) {
        if (!isLocal()) {
            try {
                return new FileContextBasedCheckpointFileManager(path, configuration);
            } catch (UnsupportedFileSystemException unsupported) {
                // Spark uses the base class then
            }
        }
        return new FileSystemBasedCheckpointFileManager(path, configuration);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
        try {
            if (!ConditionalPut.isPossible(fs(), path)) {
                return renaming.createAtomic(path, overwriteIfPossible);
            }
        } catch (IOException failure) {
            throw new java.io.UncheckedIOException(failure);
        }
        return new NewObject(new PutOnClose(fs(), path, overwriteIfPossible));
    }
}
