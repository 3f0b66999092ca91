package lakelog;

import java.io.IOException;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;
import org.apache.spark.unsafe.Platform;

/**
 * Writes the files of a stream's checkpoint. conf/spark-defaults.conf sets this class.
 *
 * On S3 a rename is a copy and a deletion, and replaces a file that exists. So on S3 each file is one put, which is
 * conditional for the files that must not exist yet. A crash leaves the whole file or nothing. A second query with the
 * same checkpoint fails instead of replacing a file.
 *
 * On other storages, this class renames a temporary file, like its base class. But the renames of the base class never
 * replace a file. So if the query wants to replace a file, ReplacingRename renames. On a local disk, ReplacingRename would
 * start a shell for each file, and would not rename the file with the checksums. So there, the old file is deleted first.
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

    public void renameTempFile(Path temporary, Path path, boolean overwriteIfPossible) {
        boolean isRenamed = false;
        try {
            if (overwriteIfPossible && !isLocal()) {
                new ReplacingRename(fs()).replace(temporary, path);
            } else {
                if (overwriteIfPossible) {
                    delete(path); // after a crash, the query repeats the micro-batch and writes the file again
                }
                super.renameTempFile(temporary, path, overwriteIfPossible);
            }
            isRenamed = !exists(temporary); // of two local attempts at one file, Spark lets the later one end like this
        } catch (IOException failure) {
            Platform.throwException(failure); // Spark expects this exception, but its method declares none
        } finally {
            if (!isRenamed) {
                delete(temporary); // Spark itself never deletes this file
            }
        }
    }
}
