package weir.spark;

import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/** The bridge's write, which takes output mode update as well: a row replaces that of its key. */
final class Upserts implements SupportsTruncate, SupportsStreamingUpdateAsAppend {
  private final WriteBuilder inner;

  Upserts(WriteBuilder inner) {
    this.inner = inner;
  }

  @Override
  public WriteBuilder truncate() {
    return ((SupportsTruncate) inner).truncate();
  }

  @Override
  public Write build() {
    return inner.build();
  }
}
