package weir.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Tables of weir by name. A name is a place below the root, which Python makes of it; this class
 * only passes Spark's questions on, as options whose names begin with "weir.".
 */
public final class WeirCatalog implements TableCatalog, SupportsNamespaces, ProcedureCatalog {
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

  private Table load(Identifier ident, Map<String, String> options) throws NoSuchTableException {
    StructType schema = Python.ask(options, "weir.ask", "load");
    if (schema.isEmpty()) {
      throw new NoSuchTableException(ident);
    }
    return new WeirTable(name + "." + ident, schema, options);
  }

  @Override
  public Table loadTable(Identifier ident) throws NoSuchTableException {
    return load(ident, at(ident));
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
    Map<String, String> options = new HashMap<>(info.properties());
    options.putAll(at(ident));
    options.put("weir.ask", "create");
    options.put("weir.schema", info.schema().json());
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
    StructType schema = Python.ask(options);
    if (schema.isEmpty()) {
      throw new TableAlreadyExistsException(ident);
    }
    return new WeirTable(name + "." + ident, schema, at(ident));
  }

  @Override
  public Table alterTable(Identifier ident, TableChange... changes) throws NoSuchTableException {
    StructType added = new StructType();
    for (TableChange change : changes) {
      if (!(change instanceof TableChange.AddColumn column) || column.fieldNames().length != 1) {
        throw new UnsupportedOperationException(
            "a weir table can only ADD COLUMNS at the top level; use Lance for other changes");
      }
      added = added.add(column.fieldNames()[0], column.dataType(), true);
    }
    Python.ask(at(ident), "weir.ask", "add", "weir.schema", added.json());
    return loadTable(ident);
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

  /** A namespace is a folder of tables: it is there when a table is in it. */
  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {}

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
