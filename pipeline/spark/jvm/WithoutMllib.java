package lakelog;

import java.io.IOException;
import java.net.URL;
import java.util.Collections;
import java.util.Enumeration;
import java.util.Vector;

/**
 * Finds the extensions of a Spark session, except those of MLlib.
 *
 * When Spark creates its first session, MLlib's extension registers four functions for vectors. For this, Spark analyses
 * the types of the functions with Scala's reflection, which takes about a second.
 */
public final class WithoutMllib extends ClassLoader {
    private static final String EXTENSIONS = "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider";

    public WithoutMllib(ClassLoader all) {
        super(all);
    }

    public Enumeration getResources(String name) throws IOException {
        Vector found = new Vector(Collections.list(super.getResources(name)));
        if (name.equals(EXTENSIONS)) {
            for (int number = found.size() - 1; number >= 0; number--) {
                if (((URL) found.get(number)).getPath().contains("/spark-mllib_")) {
                    found.remove(number);
                }
            }
        }
        return found.elements();
    }
}
