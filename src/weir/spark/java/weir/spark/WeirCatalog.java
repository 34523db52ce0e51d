package weir.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TableWritePrivilege;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Tables of weir by name. A name is a place below the root, which Python makes of it; this class
 * only passes Spark's questions on, as options whose names begin with "weir.".
 */
public final class WeirCatalog
    implements StagingTableCatalog, SupportsNamespaces, ProcedureCatalog {
  private String name;
  private Map<String, String> common;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.common = new HashMap<>(options.asCaseSensitiveMap());
    String root = this.common.remove("root");
    this.common.put("weir.root", root == null ? "" : root);
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Set<TableCatalogCapability> capabilities() {
    return Set.of(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);
  }

  private Map<String, String> at(String[] namespace) {
    return Python.with(common, "weir.namespace", String.join("/", namespace));
  }

  private Map<String, String> at(Identifier ident) {
    return Python.with(at(ident.namespace()), "weir.name", ident.name());
  }

  private StructType told(Identifier ident, Map<String, String> options)
      throws NoSuchTableException {
    StructType found = Python.ask(options, "weir.ask", "load");
    if (found.isEmpty()) {
      throw new NoSuchTableException(ident);
    }
    return found;
  }

  private Table load(Identifier ident, Map<String, String> options) throws NoSuchTableException {
    return new TruncatedTable(name + "." + ident, told(ident, options), options);
  }

  @Override
  public Table loadTable(Identifier ident) throws NoSuchTableException {
    return load(ident, at(ident));
  }

  /** What a statement is going to write decides what the table offers it: see the classes. */
  @Override
  public Table loadTable(Identifier ident, Set<TableWritePrivilege> writes)
      throws NoSuchTableException {
    Map<String, String> options = at(ident);
    String called = name + "." + ident;
    StructType told = told(ident, options);
    WeirTable found = new ChangeableTable(called, told, options);
    boolean deletes = writes.equals(Set.of(TableWritePrivilege.DELETE));
    return deletes && found.key().length == 0 ? new FilteredTable(called, told, options) : found;
  }

  @Override
  public Table loadTable(Identifier ident, String version) throws NoSuchTableException {
    return load(ident, Python.with(at(ident), "checkpoint", version));
  }

  @Override
  public Table loadTable(Identifier ident, long micros) throws NoSuchTableException {
    return load(ident, Python.with(at(ident), "weir.asof", Long.toString(micros)));
  }

  @Override
  public Identifier[] listTables(String[] namespace) {
    return Arrays.stream(Python.ask(at(namespace), "weir.ask", "tables").fieldNames())
        .map(found -> Identifier.of(namespace, found))
        .toArray(Identifier[]::new);
  }

  @Override
  public Table createTable(Identifier ident, TableInfo info) throws TableAlreadyExistsException {
    return create(ident, info, clauses(info), info.schema(), null, at(ident));
  }

  /**
   * The write's options come along: saveAsTable has no other place for a key. Without a write, the
   * columns are what the statement says; with one, what Spark inferred.
   */
  private WeirTable create(
      Identifier ident,
      TableInfo info,
      Map<String, String> clauses,
      StructType schema,
      Map<String, String> write,
      Map<String, String> at)
      throws TableAlreadyExistsException {
    Map<String, String> options = new HashMap<>(clauses);
    if (write == null) {
      options.put("weir.declared", "true");
    } else {
      write.forEach((option, value) -> options.put("weir.with." + option, value));
    }
    options.putAll(at);
    options.put("weir.ask", "create");
    options.put("weir.schema", schema.json());
    told(options, info);
    StructType made = Python.ask(options);
    if (made.isEmpty()) {
      throw new TableAlreadyExistsException(ident);
    }
    return new WeirTable(name + "." + ident, made, at);
  }

  /** Adds key and shards to what Python is told. */
  private static void told(Map<String, String> options, TableInfo info) {
    List<String> shards = new ArrayList<>();
    for (Transform transform : info.partitions()) {
      shards.add(transform.describe());
    }
    if (!shards.isEmpty()) {
      options.put("weir.partitions", String.join(";", shards));
    }
    for (Constraint constraint : info.constraints()) {
      List<String> columns = new ArrayList<>();
      if (constraint instanceof PrimaryKey key) {
        for (NamedReference column : key.columns()) {
          columns.add(column.fieldNames()[0]);
        }
        options.put("weir.key", String.join(",", columns));
      } else {
        options.put("weir.constraint", constraint.toDDL());
      }
    }
  }

  /** Columns of a query: comments and defaults of the columns that it reads stay with them. */
  private static StructType inferred(TableInfo info) {
    StructType schema = new StructType();
    for (StructField field : info.schema().fields()) {
      schema = schema.add(field.name(), field.dataType(), field.nullable());
    }
    return schema;
  }

  /** Spark names the session's default source where nobody named one, as in saveAsTable. */
  private static Map<String, String> clauses(TableInfo info) {
    Map<String, String> clauses = new HashMap<>(info.properties());
    String usual = SQLConf.get().defaultDataSourceName();
    if (!Running.uses(usual)) {
      clauses.remove("provider", usual);
    }
    return clauses;
  }

  @Override
  public StagedTable stageCreate(Identifier ident, TableInfo info) {
    StructType columns = inferred(info);
    Map<String, String> clauses = clauses(info);
    String called = name + "." + ident;
    // Until its rows are in, the table is known by this id alone (P-9).
    Map<String, String> own = Python.with(at(ident), "weir.maker", UUID.randomUUID().toString());
    return new Staged(
        called,
        columns,
        own,
        write ->
            write == null
                ? create(ident, info, clauses, info.schema(), null, at(ident))
                : create(ident, info, clauses, columns, write, own));
  }

  /** The table that is there, if Python finds that the statement can replace its rows; or null. */
  private StagedTable replacement(Identifier ident, TableInfo info) {
    StructType schema = inferred(info);
    Map<String, String> options = new HashMap<>(clauses(info));
    told(options, info);
    options.putAll(at(ident));
    options.put("weir.schema", schema.json());
    StructType found = Python.ask(options, "weir.ask", "replace");
    return found.isEmpty() ? null : new Staged(name + "." + ident, schema, at(ident), null);
  }

  @Override
  public StagedTable stageReplace(Identifier ident, TableInfo info) throws NoSuchTableException {
    StagedTable found = replacement(ident, info);
    if (found == null) {
      throw new NoSuchTableException(ident);
    }
    return found;
  }

  @Override
  public StagedTable stageCreateOrReplace(Identifier ident, TableInfo info) {
    StagedTable found = replacement(ident, info);
    return found == null ? stageCreate(ident, info) : found;
  }

  /** Changes of one kind: those of REPLACE COLUMNS would drop every value of the table. */
  @Override
  public Table alterTable(Identifier ident, TableChange... changes) throws NoSuchTableException {
    StructType added = new StructType();
    StructType dropped = new StructType();
    for (TableChange change : changes) {
      if (change instanceof TableChange.AddColumn column && column.fieldNames().length == 1) {
        added = added.add(added(column));
      } else if (change instanceof TableChange.DeleteColumn gone && gone.fieldNames().length == 1) {
        dropped = dropped.add(gone.fieldNames()[0], DataTypes.NullType);
      } else if (change instanceof TableChange.RenameColumn column
          && column.fieldNames().length == 1
          && changes.length == 1) {
        String old = column.fieldNames()[0];
        Python.ask(
            at(ident), "weir.ask", "rename", "weir.old", old, "weir.new", column.newName());
      } else {
        throw unchangeable();
      }
    }
    if (!added.isEmpty() && !dropped.isEmpty()) {
      throw unchangeable();
    }
    if (!added.isEmpty()) {
      Python.ask(at(ident), "weir.ask", "add", "weir.schema", added.json());
    }
    if (!dropped.isEmpty()) {
      Python.ask(at(ident), "weir.ask", "remove", "weir.schema", dropped.json());
    }
    return loadTable(ident);
  }

  private static UnsupportedOperationException unchangeable() {
    return new UnsupportedOperationException(
        "ALTER TABLE of weir has ADD COLUMNS, DROP COLUMN and RENAME COLUMN, of whole columns"
            + " (in Python table.add_columns, table.drop_columns, table.rename_column). For"
            + " another type add a column, fill it and drop the old one. Comments, and"
            + " properties other than those of CREATE TABLE, are not kept");
  }

  private static StructField added(TableChange.AddColumn column) {
    if (!column.isNullable()
        || column.defaultValue() != null
        || column.comment() != null
        || column.position() != null) {
      throw new UnsupportedOperationException(
          "a weir table takes new columns as nullable ones at its end: remove NOT NULL, DEFAULT,"
              + " COMMENT, FIRST and AFTER. Rows that are there have NULL in them");
    }
    return new StructField(column.fieldNames()[0], column.dataType(), true, Metadata.empty());
  }

  @Override
  public boolean dropTable(Identifier ident) {
    return Python.ask(at(ident), "weir.ask", "drop").length() > 0;
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw new UnsupportedOperationException(
        "a weir table cannot be renamed: clone it to the new name, then drop the old table");
  }

  @Override
  public UnboundProcedure loadProcedure(Identifier ident) {
    Map<String, String> options = Python.with(common, "weir.catalog", name);
    StructType arguments =
        Python.ask(options, "weir.ask", "arguments", "weir.procedure", ident.toString());
    return new Call(ident.toString(), arguments, options);
  }

  @Override
  public Identifier[] listProcedures(String[] namespace) {
    return Arrays.stream(Python.ask(at(namespace), "weir.ask", "procedures").fieldNames())
        .map(found -> Identifier.of(namespace, found))
        .toArray(Identifier[]::new);
  }

  @Override
  public String[][] listNamespaces() {
    return listNamespaces(new String[0]);
  }

  @Override
  public String[][] listNamespaces(String[] parent) {
    return Arrays.stream(Python.ask(at(parent), "weir.ask", "namespaces").fieldNames())
        .map(
            found -> {
              String[] whole = Arrays.copyOf(parent, parent.length + 1);
              whole[parent.length] = found;
              return whole;
            })
        .toArray(String[][]::new);
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) {
    return Map.of();
  }

  /** A namespace is a folder of tables: it is there when a table is in it. Spark adds an owner. */
  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    for (String property : metadata.keySet()) {
      if (!property.equals(SupportsNamespaces.PROP_OWNER)) {
        throw new UnsupportedOperationException(
            "a namespace of weir tables is a folder and keeps no "
                + property
                + ": leave COMMENT, LOCATION and DBPROPERTIES out");
      }
    }
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw new UnsupportedOperationException("a namespace of weir tables has no properties");
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    if (listTables(namespace).length > 0 || listNamespaces(namespace).length > 0) {
      throw new UnsupportedOperationException(
          "the namespace is not empty, and CASCADE is not supported; drop its tables first");
    }
    return true;
  }
}
