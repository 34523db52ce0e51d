package weir.spark;

import static java.util.regex.Pattern.CASE_INSENSITIVE;

import java.util.Map;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.jdk.javaapi.CollectionConverters;

/** The statement that this thread runs: Spark tells a catalog nothing of it. */
final class Running {
  private Running() {}

  /** Null if there is none. */
  static QueryExecution query() {
    String id =
        SparkSession.active().sparkContext().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    return id == null ? null : SQLExecution.getQueryExecution(Long.parseLong(id));
  }

  /** What it says in WITH of a table, where Spark does not tell the table; or nothing. */
  static Map<String, String> options(Table table) {
    QueryExecution running = query();
    if (running != null) {
      for (LogicalPlan leaf : CollectionConverters.asJava(running.analyzed().collectLeaves())) {
        if (leaf instanceof DataSourceV2Relation relation && relation.table() == table) {
          return relation.options();
        }
      }
    }
    return Map.of();
  }

  /** It is a CREATE or REPLACE TABLE in whose text somebody typed USING and that source. */
  static boolean uses(String source) {
    QueryExecution running = query();
    return running != null
        && running.logical().productArity() > 0
        && running.logical().productElement(0) instanceof LogicalPlan name
        && name.origin().sqlText().isDefined()
        && Pattern.compile("\\busing\\s+`?" + Pattern.quote(source) + "\\b", CASE_INSENSITIVE)
            .matcher(name.origin().sqlText().get())
            .find();
  }
}
