package weir.spark;

import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/** The bridge's write, to which Python is told what the rows replace. */
class Rows implements SupportsOverwriteV2, SupportsDynamicOverwrite {
  private final Function<Map<String, String>, WriteBuilder> bridge;

  Rows(Function<Map<String, String>, WriteBuilder> bridge) {
    this.bridge = bridge;
  }

  private WriteBuilder replacing(Map<String, String> told) {
    return ((SupportsTruncate) bridge.apply(told)).truncate();
  }

  @Override
  public WriteBuilder truncate() {
    return replacing(Map.of());
  }

  @Override
  public WriteBuilder overwrite(Predicate[] predicates) {
    return replacing(Map.of("weir.where", Conditions.of(predicates)));
  }

  @Override
  public WriteBuilder overwriteDynamicPartitions() {
    return replacing(Map.of("partitionOverwriteMode", "dynamic"));
  }

  @Override
  public Write build() {
    return bridge.apply(Map.of()).build();
  }

  /** With a key it takes output mode update as well: a row replaces that of its key. */
  static final class Upserts extends Rows implements SupportsStreamingUpdateAsAppend {
    Upserts(Function<Map<String, String>, WriteBuilder> bridge) {
      super(bridge);
    }
  }
}
