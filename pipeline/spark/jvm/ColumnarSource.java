package lakelog;

import java.util.HashMap;
import java.util.Map;

import org.apache.spark.SparkContext;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStreamWithTriggerAvailableNow;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.python.streaming.PythonStreamingSourceRunner;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

import scala.Some;

/**
 * format("lakelog"): the source that lakelog/spark/data_source.py implements in Python, read in columns.
 *
 * The Python source returns Arrow batches. Spark turns these batches into rows, and then copies each row once more,
 * because it takes a Python source for a source of rows. This class differs from Spark's own class for Python sources
 * in its readers, which give Spark the Arrow batches as they are. A file in Lakelog's jar (scripts/add_jars.py) names
 * this class, so Spark finds it before it looks for a Python source with the same name.
 *
 * The readers run on executors. If executors may lack this class, the source is read as Spark reads any Python source.
 *
 * Several streams of a session can start while other streams run (`ColumnarScan.toMicroBatchStream`).
 */
public final class ColumnarSource extends PythonDataSourceV2 implements DataSourceRegister {
    private static final String[] PLACES = {"spark.jars", "spark.yarn.dist.jars", "spark.executor.extraClassPath"};

    private String name;

    public String shortName() {
        return "lakelog";
    }

    public void setShortName(String given) {
        super.setShortName(given);
        name = given;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        return new ColumnarTable(this, name, schema);
    }

    /** Whether each executor has this class: it runs in this JVM, or Spark sends the jar to it. */
    private static boolean isOnExecutors() {
        SparkContext context = SparkSession.active().sparkContext();
        if (context.isLocal()) {
            return true;
        }
        String location = ColumnarSource.class.getProtectionDomain().getCodeSource().getLocation().getPath();
        String jar = location.substring(location.lastIndexOf('/') + 1);
        for (int place = 0; place < PLACES.length; place++) {
            if (context.getConf().get(PLACES[place], "").contains(jar)) {
                return true;
            }
        }
        return false;
    }

    private static final class ColumnarTable extends PythonTable {
        private final PythonDataSourceV2 source;
        private final String name;
        private final StructType schema;

        ColumnarTable(PythonDataSourceV2 source, String name, StructType schema) {
            super(source, name, schema);
            this.source = source;
            this.name = name;
            this.schema = schema;
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new ColumnarScanBuilder(source, name, schema, options);
        }
    }

    private static final class ColumnarScanBuilder extends PythonScanBuilder {
        private final PythonDataSourceV2 source;
        private final String name;
        private final StructType schema;
        private final CaseInsensitiveStringMap options;

        ColumnarScanBuilder(
            PythonDataSourceV2 source, String name, StructType schema, CaseInsensitiveStringMap options
        ) {
            super(source, name, schema, options);
            this.source = source;
            this.name = name;
            this.schema = schema;
            this.options = options;
        }

        public Scan build() {
            return new ColumnarScan(source, name, schema, options, pushedFilters());
        }
    }

    private static final class ColumnarScan extends PythonScan {
        private final PythonDataSourceV2 source;
        private final String name;
        private final StructType schema;
        private final CaseInsensitiveStringMap options;
        private final boolean inColumns = isOnExecutors();

        ColumnarScan(
            PythonDataSourceV2 source,
            String name,
            StructType schema,
            CaseInsensitiveStringMap options,
            Filter[] filters
        ) {
            super(source, name, schema, options, filters);
            this.source = source;
            this.name = name;
            this.schema = schema;
            this.options = options;
        }

        public Scan.ColumnarSupportMode columnarSupportMode() {
            return inColumns ? Scan.ColumnarSupportMode.SUPPORTED : super.columnarSupportMode();
        }

        public Batch toBatch() {
            return inColumns ? new ColumnarBatchRead(super.toBatch()) : super.toBatch();
        }

        /**
         * The stream of a reader that can stop at what is available now. The Python source has no other readers.
         *
         * Spark's runner of a reader adds environment variables to those of its function. By default, this function
         * shares them with all tasks of the source. If Spark sent a task of another stream at this moment, the task
         * could not be read: java.io.OptionalDataException. So this runner has its own copy of the variables.
         */
        public MicroBatchStream toMicroBatchStream(String checkpoint) {
            PythonFunction function = source.source().createPythonFunction(
                source.getOrCreateDataSourceInPython(name, options, new Some(schema)).dataSource()
            );
            PythonStreamingSourceRunner runner = new PythonStreamingSourceRunner(
                new SimplePythonFunction(
                    function.command(),
                    new HashMap(function.envVars()),
                    function.pythonIncludes(),
                    function.pythonExec(),
                    function.pythonVer(),
                    function.broadcastVars(),
                    function.accumulator()
                ),
                schema
            );
            runner.init();
            return inColumns
                ? new ColumnarStream(source, name, schema, options, runner)
                : new PythonMicroBatchStreamWithTriggerAvailableNow(source, name, schema, options, runner);
        }
    }

    private static final class ColumnarBatchRead implements Batch {
        private final Batch rows;

        ColumnarBatchRead(Batch rows) {
            this.rows = rows;
        }

        public InputPartition[] planInputPartitions() {
            return rows.planInputPartitions();
        }

        public PartitionReaderFactory createReaderFactory() {
            return ColumnarReads.like(rows.createReaderFactory());
        }
    }

    private static final class ColumnarStream extends PythonMicroBatchStreamWithTriggerAvailableNow {
        ColumnarStream(
            PythonDataSourceV2 source,
            String name,
            StructType schema,
            CaseInsensitiveStringMap options,
            PythonStreamingSourceRunner runner
        ) {
            super(source, name, schema, options, runner);
        }

        public PartitionReaderFactory createReaderFactory() {
            return ColumnarReads.like(super.createReaderFactory());
        }
    }
}
