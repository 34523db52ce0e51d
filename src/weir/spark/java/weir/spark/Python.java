package weir.spark;

import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.LogicalWriteInfoImpl;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.DataSource$;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The way to weir: Spark's bridge to the Python data source "weir". Nothing is decided here. */
final class Python {
  private Python() {}

  /**
   * A new bridge each time: one that is kept would let a pushed filter leak into other reads. Spark
   * looks for it in the session of the thread, and a thread that a user started has none.
   */
  private static TableProvider bridge() {
    boolean none = SparkSession.getActiveSession().isEmpty();
    if (none) {
      SparkSession.setActiveSession(SparkSession.active());
    }
    try {
      return DataSource$.MODULE$.lookupDataSourceV2("weir", SQLConf.get()).get();
    } finally {
      if (none) {
        SparkSession.clearActiveSession();
      }
    }
  }

  private static Table table(StructType schema) {
    return bridge().getTable(schema, new Transform[0], Map.of());
  }

  /** What `schema()` of the source answers to these options: a table's columns, or names. */
  static StructType ask(Map<String, String> options, String... more) {
    return bridge().inferSchema(new CaseInsensitiveStringMap(with(options, more)));
  }

  /** An answer that is one text. */
  static String text(StructType answer) {
    return answer.fields()[0].metadata().getString("text");
  }

  static ScanBuilder scan(StructType schema, Map<String, String> options) {
    return ((SupportsRead) table(schema)).newScanBuilder(new CaseInsensitiveStringMap(options));
  }

  static WriteBuilder write(LogicalWriteInfo info, StructType schema, Map<String, String> options) {
    LogicalWriteInfo told =
        new LogicalWriteInfoImpl(
            info.queryId(),
            schema,
            new CaseInsensitiveStringMap(options),
            info.rowIdSchema(),
            info.metadataSchema());
    return ((SupportsWrite) table(schema)).newWriteBuilder(told);
  }

  static Map<String, String> with(Map<String, String> options, String... more) {
    Map<String, String> all = new HashMap<>(options);
    for (int i = 0; i < more.length; i += 2) {
      all.put(more[i], more[i + 1]);
    }
    return all;
  }

  static Map<String, String> with(Map<String, String> options, Map<String, String> more) {
    Map<String, String> all = new HashMap<>(options);
    all.putAll(more);
    return all;
  }
}
