package weir.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.FieldReference;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A table by name: its options, and its columns as Python told them when it was looked up.
 *
 * <p>Spark looks a table up once for each statement, however often the statement names it, so all
 * its reads share this object and the snapshot that the first of them takes.
 */
class WeirTable implements SupportsRead, SupportsWrite {
  static final String SNAPSHOT = "weir.snapshot";
  private static final String KEY = "weir.key";
  private static final String UNTYPED = "weir.untyped";
  private static final String PUSHES = "spark.sql.python.filterPushdown.enabled";

  /** The field behind the columns in what Python tells of a table: its metadata is the table's. */
  private static final String TABLE = "weir.table";

  private static final ObjectMapper JSON = new ObjectMapper();

  private final String name;
  private final StructType schema;
  private final Metadata facts;
  private final Map<String, String> options;
  private final Map<String, Metadata> snapshots = new HashMap<>();
  private boolean changesRows;

  WeirTable(String name, StructType told, Map<String, String> options) {
    StructField[] fields = told.fields();
    int columns = fields.length - 1;
    if (!fields[columns].name().equals(TABLE)) {
      throw new IllegalStateException(
          "this jar and weir are of different releases: Python tells nothing of " + name);
    }
    this.name = name;
    this.schema = new StructType(Arrays.copyOf(fields, columns));
    this.facts = fields[columns].metadata();
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

  /** To Spark no key is enforced: it refuses to parse the word. weir enforces it. */
  @Override
  public Constraint[] constraints() {
    NamedReference[] key = key();
    return key.length == 0
        ? new Constraint[0]
        : new Constraint[] {Constraint.primaryKey("primary_key", key).enforced(false).build()};
  }

  /** For SHOW TBLPROPERTIES, DESCRIBE and SHOW CREATE TABLE: what CREATE TABLE would be told. */
  @Override
  public Map<String, String> properties() {
    try {
      return JSON.readValue(facts.getString("properties"), new TypeReference<>() {});
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error.getMessage(), error);
    }
  }

  @Override
  public Transform[] partitioning() {
    if (!facts.contains("column")) {
      return new Transform[0];
    }
    String column = "`" + facts.getString("column").replace("`", "``") + "`";
    return new Transform[] {
      facts.contains("buckets")
          ? Expressions.bucket((int) facts.getLong("buckets"), column)
          : Expressions.identity(column)
    };
  }

  /**
   * With a version, Spark looks the table up again for each execution of a DataFrame. A statement
   * that changes rows must not: its subqueries read what its target reads (P-7).
   */
  @Override
  public String version() {
    return changesRows ? null : "latest";
  }

  /**
   * The snapshot of all reads of this statement, and what Python told of its size; reads at a
   * checkpoint have one of their own.
   */
  private synchronized Metadata snapshot(Map<String, String> read) {
    String which =
        String.join(
            "/",
            read.getOrDefault("freshness", ""),
            read.getOrDefault("weir.asof", ""),
            read.getOrDefault("checkpoint", ""));
    return snapshots.computeIfAbsent(
        which, absent -> Python.ask(read, "weir.ask", "snapshot").fields()[0].metadata());
  }

  /** What goes along with the rows of a statement that changes some; Python refuses what cannot. */
  Map<String, String> statement(RowLevelOperation.Command command) {
    changesRows = true;
    String read =
        snapshot(Python.with(options, "weir.command", command.name())).getString("text");
    return Map.of("weir.statement", read, "weir.inserts", "true");
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Set.of(
        TableCapability.AUTOMATIC_SCHEMA_EVOLUTION,
        TableCapability.BATCH_READ,
        TableCapability.BATCH_WRITE,
        TableCapability.MICRO_BATCH_READ,
        TableCapability.OVERWRITE_BY_FILTER,
        TableCapability.OVERWRITE_DYNAMIC,
        TableCapability.STREAMING_WRITE,
        TableCapability.TRUNCATE);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    return scan(Map.of(), InsertOnly.ofRead(given));
  }

  ScanBuilder scan(Map<String, String> own, CaseInsensitiveStringMap given) {
    boolean plain = given.isEmpty() && own.isEmpty();
    return new Read(this, Python.with(Python.with(options, given), own), plain);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    Map<String, String> given = Python.with(options, info.options());
    Map<String, String> told =
        InsertOnly.readBeside(this)
            .map(read -> Python.with(given, read.statement(RowLevelOperation.Command.MERGE)))
            .orElse(given);
    boolean keyed = key().length > 0;
    if (!keyed && info.options().containsKey("primaryKey")) {
      // toTable makes a table without the options of its stream: here they are.
      StructType again = Python.ask(told, "weir.ask", "key", "weir.schema", schema.json());
      keyed = key(again).length > 0;
    }
    Function<Map<String, String>, WriteBuilder> bridge =
        more -> Python.write(info, info.schema(), Python.with(told, more));
    // Without a key a row replaces nothing: Spark then refuses output mode update.
    return keyed ? new Rows.Upserts(bridge) : new Rows(bridge);
  }

  Map<String, String> options() {
    return options;
  }

  /** The key columns, in the order of the key; Python marks them. */
  NamedReference[] key() {
    return key(schema);
  }

  private static NamedReference[] key(StructType columns) {
    return Arrays.stream(columns.fields())
        .filter(field -> field.metadata().contains(KEY))
        .sorted(Comparator.comparingLong((StructField f) -> f.metadata().getLong(KEY)))
        .map(field -> FieldReference.column(field.name()))
        .toArray(NamedReference[]::new);
  }

  /** A read: what Spark wants of it, handed to a bridge of its own. */
  private static final class Read
      implements SupportsPushDownRequiredColumns,
          SupportsPushDownFilters,
          SupportsPushDownLimit,
          SupportsPushDownAggregates {
    private final WeirTable table;
    private final Map<String, String> options;
    private final boolean plain;
    private StructType columns;
    private Filter[] filters = new Filter[0];
    private int limit = -1;
    private int counts;

    /** Plain: the statement gave no options, which only Python understands. */
    Read(WeirTable table, Map<String, String> options, boolean plain) {
      this.table = table;
      this.columns = table.schema;
      this.options = options;
      this.plain = plain;
    }

    /** A count needs no column, but Arrow counts the rows of none: one is read then. */
    @Override
    public void pruneColumns(StructType required) {
      columns = required.isEmpty() ? new StructType().add(any()) : required;
    }

    /** A column that can be read: Python marks those that Spark has no type for. */
    private StructField any() {
      StructField[] all = table.schema.fields();
      return Arrays.stream(all)
          .filter(field -> !field.metadata().contains(UNTYPED))
          .findFirst()
          .orElse(all[0]);
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

    /** Each task reads no more than that; Spark takes the rest. */
    @Override
    public boolean pushLimit(int most) {
      limit = most;
      return true;
    }

    /** Counts of all rows, where Python knows their number without reading them. */
    @Override
    public boolean supportCompletePushDown(Aggregation aggregation) {
      return plain
          && filters.length == 0
          && aggregation.groupByExpressions().length == 0
          && Arrays.stream(aggregation.aggregateExpressions()).allMatch(CountStar.class::isInstance)
          && table.snapshot(options).contains("exact");
    }

    @Override
    public boolean pushAggregation(Aggregation aggregation) {
      boolean known = supportCompletePushDown(aggregation);
      counts = known ? aggregation.aggregateExpressions().length : 0;
      return known;
    }

    @Override
    public Scan build() {
      Metadata taken = options.containsKey(SNAPSHOT) ? Metadata.empty() : table.snapshot(options);
      if (counts > 0) {
        return new Counts(table.name, taken.getLong("rows"), counts);
      }
      Map<String, String> told = new HashMap<>(options);
      if (taken.contains("text")) {
        told.put(SNAPSHOT, taken.getString("text"));
      }
      if (limit >= 0) {
        told.put("weir.limit", Integer.toString(limit));
      }
      boolean pushes =
          filters.length > 0 && "true".equals(SQLConf.get().getConfString(PUSHES, "false"));
      ScanBuilder inner =
          Python.scan(columns, pushes ? Python.with(told, "weir.pushes", "true") : told);
      if (pushes) {
        ((SupportsPushDownFilters) inner).pushFilters(filters);
      }
      String pushed = pushes ? " PushedFilters: " + Arrays.toString(filters) : "";
      return new NamedScan(table.name + pushed, inner.build(), size(taken));
    }

    /** The share of the columns that are read, as Spark does it for files. */
    private Statistics size(Metadata taken) {
      if (!taken.contains("rows")) {
        return new Size(OptionalLong.empty(), OptionalLong.empty());
      }
      double share = (double) columns.defaultSize() / Math.max(1, table.schema.defaultSize());
      long bytes = Math.max(1, (long) (taken.getLong("bytes") * Math.min(1.0, share)));
      return new Size(OptionalLong.of(bytes), OptionalLong.of(taken.getLong("rows")));
    }
  }

  private record Size(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {}

  /** The answer to a statement that only counts. */
  private record Counts(String name, long count, int times) implements LocalScan {
    @Override
    public StructType readSchema() {
      StructType all = new StructType();
      for (int i = 0; i < times; i++) {
        all = all.add("count" + i, DataTypes.LongType, false);
      }
      return all;
    }

    @Override
    public String description() {
      return name + " counted by its manifest";
    }

    @Override
    public InternalRow[] rows() {
      Object[] counted = new Object[times];
      Arrays.fill(counted, count);
      return new InternalRow[] {new GenericInternalRow(counted)};
    }
  }
}
