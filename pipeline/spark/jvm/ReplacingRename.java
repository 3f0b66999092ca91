package lakelog;

import java.io.IOException;

import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.Path;

/**
 * Renames files, and replaces a file that has the new name.
 *
 * Only a subclass of FileSystem may call the method that can replace a file. On HDFS, this method is atomic. On Azure, it
 * deletes the old file and then renames. A crash between these two steps leaves no file, and the query writes it again.
 */
final class ReplacingRename extends FilterFileSystem {
    ReplacingRename(FileSystem files) {
        super(files);
    }

    void replace(Path temporary, Path path) throws IOException {
        rename(temporary, path, new Options.Rename[] {Options.Rename.OVERWRITE});
    }
}
