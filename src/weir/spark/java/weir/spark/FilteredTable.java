package weir.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsDelete;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;

/** An append-only table for DELETE: rows without a key are known by the condition alone. */
final class FilteredTable extends WeirTable implements SupportsDelete {
  FilteredTable(String name, StructType told, Map<String, String> options) {
    super(name, told, options);
  }

  /** Spark must not look the table up again: it would find one that does not delete. */
  @Override
  public String version() {
    return null;
  }

  /** Python decides, and says which conditions it takes. */
  @Override
  public void deleteWhere(Filter[] filters) {
    Python.ask(asked(), "weir.ask", "delete", "weir.filters", Conditions.of(filters));
  }

  @Override
  public boolean truncateTable() {
    Python.ask(asked(), "weir.ask", "truncate");
    return true;
  }

  /** With what the statement says in WITH: Spark does not tell it, and Python may refuse it. */
  private Map<String, String> asked() {
    return Python.with(options(), Running.options(this));
  }
}
