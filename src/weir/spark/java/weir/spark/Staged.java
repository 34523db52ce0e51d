package weir.spark;

import java.util.Set;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/** A table that a CREATE or REPLACE statement makes or fills, all of it or nothing. */
final class Staged implements StagedTable, SupportsWrite {
  /** What the statement does: with the rows of its query, or with no query at all. */
  interface Change {
    WriteBuilder rows(LogicalWriteInfo info);

    void withoutRows();

    void abort();
  }

  private final String name;
  private final StructType schema;
  private final Change change;
  private boolean writes;

  Staged(String name, StructType schema, Change change) {
    this.name = name;
    this.schema = schema;
    this.change = change;
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
    return new Only(change.rows(info));
  }

  @Override
  public void commitStagedChanges() {
    if (!writes) {
      change.withoutRows();
    }
  }

  @Override
  public void abortStagedChanges() {
    change.abort();
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
