package weir.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.types.StructType;

/** A table for UPDATE, MERGE and DELETE: rows are known by their key, and Python refuses others. */
class ChangeableTable extends WeirTable implements SupportsRowLevelOperations {
  ChangeableTable(String name, StructType told, Map<String, String> options) {
    super(name, told, options);
  }

  @Override
  public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
    return () -> new RowOperation(this, info.command());
  }
}
