package lakelog;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;

import io.delta.storage.S3SingleDriverLogStore;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;

/**
 * Commits to Delta tables on S3 with conditional puts. conf/spark-defaults.conf sets this class for the schemes of S3.
 *
 * Delta's own log store for S3 first looks for a commit and then puts it, so only the writers of one JVM exclude one
 * another. With this class, several drivers and other conditional writers, such as deltalake, may commit to one table.
 */
public final class ConditionalLogStore extends S3SingleDriverLogStore {
    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, configuration);
            return;
        }
        ByteArrayOutputStream content = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            content.write(((String) actions.next()).getBytes(StandardCharsets.UTF_8));
            content.write('\n');
        }
        try {
            ConditionalPut.create(path.getFileSystem(configuration), path, content.toByteArray());
        } catch (FileAlreadyExistsException exists) {
            // Delta expects the exception of the JDK. It then compares this commit with the commit that exists.
            java.nio.file.FileAlreadyExistsException expected =
                new java.nio.file.FileAlreadyExistsException(path.toString());
            expected.initCause(exists);
            throw expected;
        }
    }
}
