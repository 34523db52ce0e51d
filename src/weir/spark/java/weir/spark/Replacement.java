package weir.spark;

import java.util.Map;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/**
 * The rows of a table that is there, replaced by one commit: key, shards and checkpoints stay.
 * Nothing happens to it before all new rows are written.
 */
record Replacement(StructType schema, Map<String, String> options) implements Staged.Change {
  @Override
  public WriteBuilder rows(LogicalWriteInfo info) {
    Map<String, String> told =
        Python.with(
            Python.with(options, info.options()), "overwrite", "true", "mergeSchema", "true");
    return ((SupportsTruncate) Python.write(info, info.schema(), told)).truncate();
  }

  @Override
  public void withoutRows() {
    Python.ask(options, "weir.ask", "truncate", "weir.schema", schema.json());
  }

  /** The table is as it was. */
  @Override
  public void abort() {}
}
