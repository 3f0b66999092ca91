package lakelog;

import java.util.Collections;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.DataType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.AccumulatorV2;

import scala.$less$colon$less$;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Map;
import scala.collection.mutable.HashMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Runs the tasks of a Python source, and gives Spark the Arrow batches that Python returns.
 *
 * Spark's own factories, PythonPartitionReaderFactory and PythonStreamingPartitionReaderFactory, start Python in the
 * same way and with the same arguments, but give Spark rows.
 */
final class ColumnarReads implements PartitionReaderFactory {
    private final PartitionReaderFactory rows;
    private final UserDefinedPythonDataSource source;
    private final byte[] function;
    private final StructType schema;
    private final Option artifacts;
    private final Option session;

    private ColumnarReads(
        PartitionReaderFactory rows,
        UserDefinedPythonDataSource source,
        byte[] function,
        StructType schema,
        Option artifacts,
        Option session
    ) {
        this.rows = rows;
        this.source = source;
        this.function = function;
        this.schema = schema;
        this.artifacts = artifacts;
        this.session = session;
    }

    /** The factory of readers in columns that do what the readers of one of Spark's two factories do. */
    static ColumnarReads like(PartitionReaderFactory rows) {
        if (rows instanceof PythonPartitionReaderFactory) {
            PythonPartitionReaderFactory batch = (PythonPartitionReaderFactory) rows;
            return new ColumnarReads(
                rows,
                batch.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$source,
                batch.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$pickledReadFunc,
                batch.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$outputSchema,
                batch.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$jobArtifactUUID,
                batch.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$sessionUUID
            );
        }
        PythonStreamingPartitionReaderFactory stream = (PythonStreamingPartitionReaderFactory) rows;
        return new ColumnarReads(
            rows,
            stream.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$source,
            stream.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$pickledReadFunc,
            stream.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$outputSchema,
            stream.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$jobArtifactUUID,
            stream.org$apache$spark$sql$execution$datasources$v2$python$PythonStreamingPartitionReaderFactory$$sessionUUID
        );
    }

    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    public PartitionReader createReader(InputPartition partition) {
        return rows.createReader(partition);
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        return new Reader(
            partition instanceof PythonInputPartition
                ? ((PythonInputPartition) partition).pickedPartition()
                : ((PythonStreamingInputPartition) partition).pickedPartition()
        );
    }

    private static Iterator only(Object element) {
        return CollectionConverters.asScala(Collections.singletonList(element).iterator());
    }

    private final class Reader implements PartitionReader {
        private final Map metrics = PythonCustomMetric.pythonMetrics();
        private final Iterator batches;

        Reader(byte[] pickledPartition) {
            StructType input = UserDefinedPythonDataSource.readInputSchema();
            MapInBatchEvaluatorFactory evaluators = source.createMapInBatchEvaluatorFactory(
                function, "read_from_data_source", input, schema, metrics, artifacts, session
            );
            ArrowPythonRunner runner = new ArrowPythonRunner(
                evaluators.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$chainedFunc,
                evaluators.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonEvalType,
                new int[][] {{0}},
                new StructType().add("struct", input),
                evaluators.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$sessionLocalTimeZone,
                evaluators.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$largeVarTypes,
                evaluators.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonRunnerConf,
                metrics,
                artifacts,
                session
            );
            // Python gets one batch with one row, a struct with one field: the partition.
            Object partition = new GenericInternalRow(new Object[] {pickledPartition});
            Object row = new GenericInternalRow(new Object[] {partition});
            TaskContext context = TaskContext.get();
            batches = runner.compute(only(only(row)), context.partitionId(), context);
        }

        public boolean next() {
            return batches.hasNext();
        }

        /** The next batch. It is valid until the next call, because Arrow uses its memory again. */
        public Object get() {
            ColumnarBatch batch = (ColumnarBatch) batches.next();
            ArrowColumnVector struct = (ArrowColumnVector) batch.column(0);
            if (!DataType$.MODULE$.equalsIgnoreCompatibleNullability(struct.dataType(), schema)) {
                throw new IllegalStateException(
                    "the Python source has returned " + struct.dataType().simpleString() + " instead of "
                        + schema.simpleString()
                );
            }
            ColumnVector[] columns = new ColumnVector[schema.fields().length];
            for (int column = 0; column < columns.length; column++) {
                columns[column] = ArrowColumn.of(struct.getChild(column));
            }
            return new ColumnarBatch(columns, batch.numRows());
        }

        public CustomTaskMetric[] currentMetricsValues() {
            HashMap values = new HashMap();
            Iterator named = metrics.iterator();
            while (named.hasNext()) {
                Tuple2 metric = (Tuple2) named.next();
                values.put(metric._1(), ((AccumulatorV2) metric._2()).value());
            }
            return source.createPythonTaskMetrics(values.toMap($less$colon$less$.MODULE$.refl()));
        }

        public void close() {
            // The end of the task stops the exchange with Python.
        }
    }
}
