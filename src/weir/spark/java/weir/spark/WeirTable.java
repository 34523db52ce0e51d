package weir.spark;

import java.util.Arrays;
import java.util.Comparator;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table by name: its options, and its columns as Python told them when it was looked up. */
final class WeirTable implements SupportsRead, SupportsWrite, SupportsRowLevelOperations {
  private static final String KEY = "weir.key";
  private static final String PUSHES = "spark.sql.python.filterPushdown.enabled";

  private final String name;
  private final StructType schema;
  private final Map<String, String> options;

  WeirTable(String name, StructType schema, Map<String, String> options) {
    this.name = name;
    this.schema = schema;
    this.options = options;
  }

  @Override
  public String name() {
    return name;
  }

  /** As a sink in the progress of a stream. */
  @Override
  public String toString() {
    return "weir[" + name + "]";
  }

  @Override
  @SuppressWarnings("deprecation") // its successor loses nothing but is built from it
  public StructType schema() {
    return schema;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Set.of(
        TableCapability.BATCH_READ,
        TableCapability.BATCH_WRITE,
        TableCapability.MICRO_BATCH_READ,
        TableCapability.STREAMING_WRITE,
        TableCapability.TRUNCATE);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    return scan(Map.of(), given);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    WriteBuilder inner = Python.write(info, info.schema(), Python.with(options, info.options()));
    // Without a key a row replaces nothing: Spark then refuses output mode update.
    return key().length == 0 ? inner : new Upserts(inner);
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return () -> new RowOperation(this, info.command());
  }

  ScanBuilder scan(Map<String, String> own, CaseInsensitiveStringMap given) {
    return new Read(name, schema, Python.with(Python.with(options, own), given));
  }

  Map<String, String> options() {
    return options;
  }

  /** The key columns, in the order of the key; Python marks them. */
  NamedReference[] key() {
    return Arrays.stream(schema.fields())
        .filter(field -> field.metadata().contains(KEY))
        .sorted(Comparator.comparingLong((StructField f) -> f.metadata().getLong(KEY)))
        .map(field -> FieldReference.column(field.name()))
        .toArray(NamedReference[]::new);
  }

  /** A read: the columns and filters Spark wants, handed to a bridge of its own. */
  private static final class Read
      implements SupportsPushDownRequiredColumns, SupportsPushDownFilters {
    private final String name;
    private final Map<String, String> options;
    private final StructType all;
    private StructType columns;
    private Filter[] filters = new Filter[0];

    Read(String name, StructType columns, Map<String, String> options) {
      this.name = name;
      this.all = columns;
      this.columns = columns;
      this.options = options;
    }

    /** A count needs no column, but Arrow counts the rows of none: one is read then. */
    @Override
    public void pruneColumns(StructType required) {
      columns = required.isEmpty() ? new StructType().add(all.fields()[0]) : required;
    }

    /** All are evaluated by Spark again: what Python makes of them only spares reading. */
    @Override
    public Filter[] pushFilters(Filter[] wanted) {
      filters = wanted;
      return wanted;
    }

    @Override
    public Filter[] pushedFilters() {
      return filters;
    }

    @Override
    public Scan build() {
      boolean pushes =
          filters.length > 0 && "true".equals(SQLConf.get().getConfString(PUSHES, "false"));
      ScanBuilder inner =
          Python.scan(
              columns, pushes ? Python.with(options, "weir.pushes", "true") : options);
      if (pushes) {
        ((SupportsPushDownFilters) inner).pushFilters(filters);
      }
      return new NamedScan(name, inner.build());
    }
  }
}
