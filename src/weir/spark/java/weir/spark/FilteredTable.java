package weir.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.types.StructType;

/** An append-only table for DELETE: rows without a key are known by the condition alone. */
final class FilteredTable extends WeirTable implements SupportsDeleteV2 {
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
  public void deleteWhere(Predicate[] predicates) {
    Python.ask(asked(), "weir.ask", "delete", "weir.filters", Conditions.of(predicates));
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
