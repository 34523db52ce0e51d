package weir.spark;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/** A table that the statement's own write creates, and that goes when the statement fails. */
final class NewTable implements StagedTable, SupportsWrite {
  /** Makes the table, with the options of the write; without a write they are null. */
  interface Maker {
    WeirTable make(Map<String, String> write) throws TableAlreadyExistsException;
  }

  private final String name;
  private final StructType schema;
  private final Maker maker;
  private final Runnable drop;
  private WeirTable made;

  NewTable(String name, StructType schema, Maker maker, Runnable drop) {
    this.name = name;
    this.schema = schema;
    this.maker = maker;
    this.drop = drop;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  @SuppressWarnings("deprecation") // as in WeirTable
  public StructType schema() {
    return schema;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Set.of(TableCapability.BATCH_WRITE, TableCapability.TRUNCATE);
  }

  private WeirTable made(Map<String, String> write) {
    if (made == null) {
      try {
        made = maker.make(write);
      } catch (TableAlreadyExistsException error) {
        throw new IllegalStateException(error.getMessage(), error);
      }
    }
    return made;
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new Rows(made(info.options()).newWriteBuilder(info));
  }

  @Override
  public void commitStagedChanges() {
    made(null);
  }

  @Override
  public void abortStagedChanges() {
    if (made != null) {
      drop.run();
    }
  }

  /** Spark overwrites where the statement may replace a table; a new one has nothing to replace. */
  private record Rows(WriteBuilder inner) implements SupportsTruncate {
    @Override
    public WriteBuilder truncate() {
      return this;
    }

    @Override
    public Write build() {
      return inner.build();
    }
  }
}
