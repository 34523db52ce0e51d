package weir.spark;

import java.util.Optional;
import org.apache.spark.sql.catalyst.plans.logical.InsertOnlyMerge;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.jdk.javaapi.CollectionConverters;

/**
 * MERGE with nothing but NOT MATCHED THEN INSERT: Spark plans it as an append, and does not say so.
 *
 * <p>It reads the table as any MERGE does, so its rows must carry the snapshot they come from (P-7).
 */
final class InsertOnly {
  private InsertOnly() {}

  private static boolean is(QueryExecution running) {
    return running != null && running.analyzed() instanceof InsertOnlyMerge;
  }

  /** The options of a read, marked as those of a statement where a MERGE is running. */
  static CaseInsensitiveStringMap ofRead(CaseInsensitiveStringMap options) {
    return is(Running.query()) ? RowOperation.ofStatement(options) : options;
  }

  /** The table that the running MERGE reads where it writes `written`; empty if it is no MERGE. */
  static Optional<WeirTable> readBeside(WeirTable written) {
    QueryExecution running = Running.query();
    if (!is(running)) {
      return Optional.empty();
    }
    for (LogicalPlan leaf :
        CollectionConverters.asJava(running.tableVersionsRefreshed().collectLeaves())) {
      if (leaf instanceof DataSourceV2Relation relation
          && relation.table() instanceof WeirTable read
          && read.options().equals(written.options())) {
        return Optional.of(read);
      }
    }
    throw new IllegalStateException("a MERGE into " + written.name() + " that does not read it");
  }
}
