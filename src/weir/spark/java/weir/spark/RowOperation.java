package weir.spark;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.ExternalAppendOnlyUnsafeRowArray;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * DELETE, UPDATE and MERGE: rows are known by their key and go to the Python writer with a mark.
 *
 * <p>The statement reads one snapshot, which goes along with its rows: weir refuses those whose key
 * changed since.
 */
final class RowOperation implements SupportsDelta {
  private static final String DELETE = "_delete";

  private final WeirTable table;
  private final Command command;
  private final Map<String, String> statement;

  RowOperation(WeirTable table, Command command) {
    this.table = table;
    this.command = command;
    this.statement = table.statement(command);
  }

  @Override
  public Command command() {
    return command;
  }

  @Override
  public NamedReference[] rowId() {
    return table.key();
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return table.scan(
        Map.of(WeirTable.SNAPSHOT, statement.get("weir.statement")), ofStatement(options));
  }

  /** Its id is for its write: Python lets it pass, and knows which options it may have. */
  static CaseInsensitiveStringMap ofStatement(CaseInsensitiveStringMap options) {
    Map<String, String> read = new HashMap<>(options);
    if (!read.isEmpty()) {
      read.put("weir.reader", "statement");
    }
    return new CaseInsensitiveStringMap(read);
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    StructType columns = new StructType();
    for (StructField field : table.schema().fields()) {
      columns = columns.add(field.name(), field.dataType(), true);
    }
    StructType marked = columns.add(DELETE, DataTypes.BooleanType, false);
    StructType given = info.schema();
    StructType id = info.rowIdSchema().orElseGet(StructType::new);
    Map<String, String> options =
        Python.with(
            Python.with(Python.with(table.options(), info.options()), statement),
            "deleteColumn",
            DELETE);
    return new DeltaWriteBuilder() {
      @Override
      public DeltaWrite build() {
        BatchWrite python = Python.write(info, marked, options).build().toBatch();
        return new DeltaWrite() {
          @Override
          public DeltaBatchWrite toBatch() {
            return new Batch(python, marked, given, id);
          }
        };
      }
    };
  }

  private record Batch(BatchWrite python, StructType marked, StructType given, StructType id)
      implements DeltaBatchWrite {
    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new Factory(python.createBatchWriterFactory(info), marked, given, id);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      python.commit(messages);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      python.abort(messages);
    }
  }

  private record Factory(
      DataWriterFactory python, StructType marked, StructType given, StructType id)
      implements DeltaWriterFactory {
    @Override
    public DeltaWriter<InternalRow> createWriter(int partition, long task) {
      return new Writer(python.createWriter(partition, task), marked, given, id);
    }
  }

  /**
   * Keeps a task's rows until Python takes them all by one iterator; beyond some, Spark's memory
   * manager says when they go to disk. A bound of ours would be smaller than a page of Spark's, and
   * every row a file.
   */
  private static final class Writer implements DeltaWriter<InternalRow> {
    private static final int ROWS_IN_MEMORY = 4096;
    private static final long BYTES_IN_MEMORY = 16 << 20;

    private final DataWriter<InternalRow> python;
    private final StructType marked;
    private final int[] fromRow;
    private final int[] fromId;
    private final int width;
    private final UnsafeProjection unsafe;
    private final ExternalAppendOnlyUnsafeRowArray rows =
        new ExternalAppendOnlyUnsafeRowArray(
            ROWS_IN_MEMORY, BYTES_IN_MEMORY, Integer.MAX_VALUE, Long.MAX_VALUE);

    Writer(DataWriter<InternalRow> python, StructType marked, StructType given, StructType id) {
      this.python = python;
      this.marked = marked;
      this.width = marked.length() - 1;
      this.fromRow = places(marked, given);
      this.fromId = places(marked, id);
      this.unsafe = UnsafeProjection.create(marked);
    }

    private static int[] places(StructType marked, StructType source) {
      int[] found = new int[marked.length() - 1];
      for (int i = 0; i < found.length; i++) {
        scala.Option<Object> index = source.getFieldIndex(marked.fields()[i].name());
        found[i] = index.isEmpty() ? -1 : (Integer) index.get();
      }
      return found;
    }

    private void add(InternalRow row, int[] from, boolean isDelete) {
      GenericInternalRow whole = new GenericInternalRow(width + 1);
      for (int i = 0; i < width; i++) {
        if (from[i] >= 0 && !row.isNullAt(from[i])) {
          whole.update(i, row.get(from[i], marked.fields()[i].dataType()));
        }
      }
      whole.setBoolean(width, isDelete);
      rows.add(unsafe.apply(whole));
    }

    @Override
    public void delete(InternalRow metadata, InternalRow id) {
      add(id, fromId, true);
    }

    /** weir tells a row that left its key from one that stayed: a put of a key beats a delete. */
    @Override
    public void update(InternalRow metadata, InternalRow id, InternalRow row) {
      add(id, fromId, true);
      add(row, fromRow, false);
    }

    @Override
    public void insert(InternalRow row) {
      add(row, fromRow, false);
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      scala.collection.Iterator<UnsafeRow> all = rows.generateIterator();
      python.writeAll(
          new java.util.Iterator<>() {
            @Override
            public boolean hasNext() {
              return all.hasNext();
            }

            @Override
            public InternalRow next() {
              return all.next();
            }
          });
      return python.commit();
    }

    @Override
    public void abort() throws IOException {
      python.abort();
    }

    @Override
    public void close() throws IOException {
      rows.clear();
      python.close();
    }
  }
}
