package lakelog;

import java.io.IOException;
import java.net.URL;
import java.util.Collections;
import java.util.Enumeration;
import java.util.Vector;

/**
 * Finds the extensions of a Spark session, except MLlib's.
 *
 * When Spark creates a session, MLlib's extension registers functions for vectors. The first time in a JVM, this takes about
 * a second, because Spark analyses the types of the functions with Scala's reflection.
 */
public final class WithoutMllib extends ClassLoader {
    private static final String EXTENSIONS = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider";

    private static final String MLLIB = ".*/spark-mllib_[^/]*\\.jar!.*";

    public WithoutMllib(ClassLoader all) {
        super(all);
    }

    public Enumeration getResources(String name) throws IOException {
        Vector found = new Vector(Collections.list(super.getResources(name)));
        if (name.equals(EXTENSIONS)) {
            for (int number = found.size() - 1; number >= 0; number--) {
                if (((URL) found.get(number)).getPath().matches(MLLIB)) {
                    found.remove(number);
                }
            }
        }
        return found.elements();
    }
}
