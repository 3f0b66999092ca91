package lakelog;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.net.SocketTimeoutException;
import java.util.Arrays;

import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.s3a.AWSServiceIOException;

/**
 * Creates a whole file, or fails because the file exists already.
 *
 * FileSystem.create(path, false) of S3A first asks whether the object exists, and puts the object later. A writer that
 * is paused between these two steps overwrites the object of another writer. Here the put itself has the condition
 * If-None-Match, so the store decides.
 *
 * A put that failed may have succeeded: its reply was lost, and then the repeated put meets its own object. So after a
 * failure the object is read. If the object has the same bytes, the put counts as done.
 */
final class ConditionalPut {
    private static final String CONDITION = "fs.option.create.conditional.overwrite";
    private static final int CONFLICT = 409; // another put of the same key is under way: S3 wants a repetition
    private static final int ATTEMPTS = 8;
    private static final long PAUSE_MS = 50;

    private ConditionalPut() {}

    static boolean isPossible(FileSystem files, Path path) throws IOException {
        return files.hasPathCapability(path, CONDITION);
    }

    static void create(FileSystem files, Path path, byte[] content) throws IOException {
        for (int attempt = 1;; attempt++) {
            try {
                put(files, path, content);
                return;
            } catch (IOException failure) {
                if (isInterruption(failure)) {
                    throw failure;
                }
                byte[] found = readOrNull(files, path, failure);
                if (found != null && Arrays.equals(found, content)) {
                    return;
                }
                if (found != null) {
                    FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
                    exists.initCause(failure);
                    throw exists;
                }
                if (attempt == ATTEMPTS || !isConflict(failure)) {
                    throw failure;
                }
                pause(attempt * PAUSE_MS);
            }
        }
    }

    private static void put(FileSystem files, Path path, byte[] content) throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path);
        builder.overwrite(false);
        builder.must(CONDITION, true);
        FSDataOutputStream stream = (FSDataOutputStream) builder.build();
        try {
            stream.write(content);
        } catch (IOException failure) {
            stream.abort(); // close() would put the part that was written
            throw failure;
        }
        stream.close();
    }

    private static byte[] readOrNull(FileSystem files, Path path, IOException failure) throws IOException {
        try {
            FSDataInputStream stream = files.open(path);
            try {
                return stream.readAllBytes();
            } finally {
                stream.close();
            }
        } catch (FileNotFoundException missing) {
            return null;
        } catch (IOException unreadable) {
            failure.addSuppressed(unreadable);
            throw failure;
        }
    }

    private static boolean isInterruption(IOException failure) {
        return failure instanceof InterruptedIOException && !(failure instanceof SocketTimeoutException);
    }

    private static boolean isConflict(IOException failure) {
        return failure instanceof AWSServiceIOException && ((AWSServiceIOException) failure).statusCode() == CONFLICT;
    }

    private static void pause(long milliseconds) throws IOException {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException(interrupted.getMessage());
        }
    }
}
