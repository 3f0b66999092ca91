package lakelog;

import java.io.IOException;
import java.net.URL;
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
        Enumeration found = super.getResources(name);
        if (!name.equals(EXTENSIONS)) {
            return found;
        }
        Vector others = new Vector();
        while (found.hasMoreElements()) {
            URL extension = (URL) found.nextElement();
            if (!extension.getPath().matches(MLLIB)) {
                others.add(extension);
            }
        }
        return others.elements();
    }
}
