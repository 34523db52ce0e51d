package weir.spark;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.vector.ValueVector;
import org.apache.arrow.vector.complex.StructVector;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.execution.python.MapInBatchEvaluatorFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The read of the bridge, whose Arrow batches go on as they came from Python.
 *
 * <p>The bridge itself makes rows of them one by one, which costs as much as all the rest. It keeps
 * what its Python function needs in fields that it shows, and has no door to its batches.
 */
final class ArrowBatch implements Batch {
  private final Batch inner;

  ArrowBatch(Batch inner) {
    this.inner = inner;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    return inner.planInputPartitions();
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new Factory((PythonPartitionReaderFactory) inner.createReaderFactory());
  }

  private record Factory(PythonPartitionReaderFactory inner) implements PartitionReaderFactory {
    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return true;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return inner.createReader(partition);
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return new Reader(inner, (PythonInputPartition) partition);
    }
  }

  /** What the bridge's own reader does, up to the point where it would make rows. */
  private static final class Reader implements PartitionReader<ColumnarBatch> {
    private static final StructType INPUT = UserDefinedPythonDataSource.readInputSchema();

    private final UserDefinedPythonDataSource source;
    private final scala.collection.immutable.Map<String, SQLMetric> metrics =
        PythonCustomMetric.pythonMetrics();
    private final scala.collection.Iterator<ColumnarBatch> batches;

    Reader(PythonPartitionReaderFactory bridge, PythonInputPartition partition) {
      source = bridge.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$source;
      MapInBatchEvaluatorFactory told =
          source.createMapInBatchEvaluatorFactory(
              bridge.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$pickledReadFunc,
              "read_from_data_source",
              INPUT,
              bridge.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$outputSchema,
              metrics,
              bridge.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$jobArtifactUUID,
              bridge.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$sessionUUID);
      ArrowPythonRunner runner =
          new ArrowPythonRunner(
              told.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$chainedFunc,
              told.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonEvalType,
              new int[][] {{0}},
              new StructType().add("struct", INPUT),
              told.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$sessionLocalTimeZone,
              told.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$largeVarTypes,
              told.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$pythonRunnerConf,
              metrics,
              told.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$jobArtifactUUID,
              told.org$apache$spark$sql$execution$python$MapInBatchEvaluatorFactory$$sessionUUID);
      InternalRow row = row(row(partition.pickedPartition()));
      batches = runner.compute(one(one(row)), partition.index(), TaskContext.get());
    }

    private static InternalRow row(Object value) {
      return new GenericInternalRow(new Object[] {value});
    }

    private static <T> scala.collection.Iterator<T> one(T value) {
      return CollectionConverters.asScala(List.of(value).iterator());
    }

    @Override
    public boolean next() {
      return batches.hasNext();
    }

    @Override
    public ColumnarBatch get() {
      ColumnarBatch batch = batches.next();
      ValueVector rows = ((ArrowColumnVector) batch.column(0)).getValueVector();
      ColumnVector[] columns =
          ((StructVector) rows)
              .getChildrenFromFields().stream()
                  .map(Lent::new)
                  .toArray(ColumnVector[]::new);
      return new ColumnarBatch(columns, batch.numRows());
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      Map<String, Object> values = new HashMap<>();
      CollectionConverters.asJava(metrics).forEach((name, metric) -> values.put(name, metric.value()));
      return source.createPythonTaskMetrics(
          scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(values)));
    }

    /** The task ends the Python function, as the bridge has it. */
    @Override
    public void close() {}
  }

  /** A column that the Python function keeps and fills again: Spark would close it between. */
  private static final class Lent extends ArrowColumnVector {
    Lent(ValueVector vector) {
      super(vector);
    }

    @Override
    public void close() {}
  }
}
