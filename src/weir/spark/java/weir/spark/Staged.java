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

/**
 * A table that a CREATE or REPLACE statement makes or fills.
 *
 * <p>One that is there keeps its key, shards and checkpoints: its rows are replaced by one commit,
 * and nothing happens to it before all new rows are written. One that the statement makes is found
 * by nobody before that, and goes when the statement fails (P-9).
 */
final class Staged implements StagedTable, SupportsWrite {
  /** Makes the table, with the options of the write; without a write they are null. */
  interface Maker {
    WeirTable make(Map<String, String> write) throws TableAlreadyExistsException;
  }

  private final String name;
  private final StructType schema;
  private final Map<String, String> options;
  private final Maker maker;
  private WeirTable made;
  private boolean writes;

  /** Without a maker the table is there. */
  Staged(String name, StructType schema, Map<String, String> options, Maker maker) {
    this.name = name;
    this.schema = schema;
    this.options = options;
    this.maker = maker;
  }

  private void make(Map<String, String> write) {
    try {
      made = maker.make(write);
    } catch (TableAlreadyExistsException error) {
      throw new IllegalStateException(error.getMessage(), error);
    }
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

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    writes = true;
    if (maker == null) {
      Map<String, String> told =
          Python.with(
              Python.with(options, info.options()), "overwrite", "true", "mergeSchema", "true");
      return new Only(((SupportsTruncate) Python.write(info, info.schema(), told)).truncate());
    }
    if (made == null) {
      make(info.options());
    }
    return new Only(made.newWriteBuilder(info));
  }

  @Override
  public void commitStagedChanges() {
    if (!writes && maker == null) {
      Python.ask(options, "weir.ask", "truncate", "weir.schema", schema.json());
    } else if (!writes) {
      make(null);
    } else if (maker != null) {
      Python.ask(options, "weir.ask", "complete");
    }
  }

  @Override
  public void abortStagedChanges() {
    if (writes && maker != null) {
      Python.ask(options, "weir.ask", "drop");
    }
  }

  /** Whether Spark says that it overwrites or not, these rows are the only ones of the table. */
  private record Only(WriteBuilder inner) implements SupportsTruncate {
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
