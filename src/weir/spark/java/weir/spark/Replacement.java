package weir.spark;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/**
 * A table that is there, and whose rows the statement replaces by one commit: key, shards and
 * checkpoints stay. Nothing happens to it before all new rows are written.
 */
final class Replacement implements StagedTable, SupportsWrite {
  private final String name;
  private final StructType schema;
  private final Map<String, String> options;
  private boolean writes;

  Replacement(String name, StructType schema, Map<String, String> options) {
    this.name = name;
    this.schema = schema;
    this.options = options;
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
    Map<String, String> told =
        Python.with(
            Python.with(options, info.options()), "overwrite", "true", "mergeSchema", "true");
    return new Rows(((SupportsTruncate) Python.write(info, info.schema(), told)).truncate());
  }

  /** The commit of the rows was the statement's; without rows, the table is emptied here. */
  @Override
  public void commitStagedChanges() {
    if (!writes) {
      Python.ask(options, "weir.ask", "truncate", "weir.schema", schema.json());
    }
  }

  @Override
  public void abortStagedChanges() {}

  /** Whether Spark says that it overwrites or not: these rows replace all others. */
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
