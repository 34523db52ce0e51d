package weir.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.types.StructType;

/**
 * A table for TRUNCATE, and for all statements that ask for nothing more.
 *
 * <p>Not for DELETE: Spark would truncate where a DELETE has no condition, and feeds of a table with
 * a key could not tell which rows went.
 */
final class TruncatedTable extends ChangeableTable implements TruncatableTable {
  TruncatedTable(String name, StructType told, Map<String, String> options) {
    super(name, told, options);
  }

  @Override
  public boolean truncateTable() {
    Python.ask(options(), "weir.ask", "truncate");
    return true;
  }
}
