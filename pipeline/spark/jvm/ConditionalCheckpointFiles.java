package lakelog;

import java.io.IOException;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Writes the files of a stream's checkpoint. conf/spark-defaults.conf sets this class.
 *
 * On S3 a rename is a copy and a deletion, and replaces a file that exists. So on S3 each file is one put, which is
 * conditional for the files that must not exist yet. A crash leaves the whole file or nothing. A second query with the
 * same checkpoint fails instead of replacing a file.
 * On other storages, this class works like its base class.
 */
public final class ConditionalCheckpointFiles extends FileSystemBasedCheckpointFileManager {
    public ConditionalCheckpointFiles(Path path, Configuration configuration) {
        super(path, configuration);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
        try {
            if (!ConditionalPut.isPossible(fs(), path)) {
                return super.createAtomic(path, overwriteIfPossible);
            }
        } catch (IOException failure) {
            throw new java.io.UncheckedIOException(failure);
        }
        return new NewObject(new PutOnClose(fs(), path, overwriteIfPossible));
    }
}
