package lakelog;

import java.io.ByteArrayOutputStream;
import java.io.IOException;

import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Collects bytes, and puts them once. The put replaces an object that exists, or has the condition that none exists. */
final class PutOnClose extends ByteArrayOutputStream {
    private final FileSystem files;
    private final Path path;
    private final boolean replaces;
    private boolean ended = false;

    PutOnClose(FileSystem files, Path path, boolean replaces) {
        this.files = files;
        this.path = path;
        this.replaces = replaces;
    }

    public void close() throws IOException {
        if (ended) {
            return;
        }
        ended = true;
        if (!replaces) {
            ConditionalPut.create(files, path, toByteArray());
            return;
        }
        FSDataOutputStream stream = files.create(path, true);
        stream.write(buf, 0, count);
        stream.close();
    }

    void cancel() {
        ended = true;
    }
}
