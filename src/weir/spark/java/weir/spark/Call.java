package weir.spark;

import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** CALL: the names of its arguments, and what it answers, are Python's. Everything is text. */
record Call(String name, StructType arguments, Map<String, String> options)
    implements UnboundProcedure, BoundProcedure {
  @Override
  public BoundProcedure bind(StructType given) {
    return this;
  }

  @Override
  public ProcedureParameter[] parameters() {
    return Arrays.stream(arguments.fieldNames())
        .map(
            argument ->
                ProcedureParameter.in(argument, DataTypes.StringType).defaultValue("NULL").build())
        .toArray(ProcedureParameter[]::new);
  }

  @Override
  public boolean isDeterministic() {
    return false;
  }

  @Override
  public Iterator<Scan> call(InternalRow given) {
    Map<String, String> told = Python.with(options, "weir.ask", "call", "weir.procedure", name);
    for (int i = 0; i < arguments.length(); i++) {
      if (!given.isNullAt(i)) {
        told.put("weir.argument." + arguments.fieldNames()[i], given.getUTF8String(i).toString());
      }
    }
    StructType answer = Python.ask(told);
    InternalRow[] rows = rows(answer);
    Scan scan =
        new LocalScan() {
          @Override
          public InternalRow[] rows() {
            return rows;
          }

          @Override
          public StructType readSchema() {
            return answer;
          }
        };
    return List.of(scan).iterator();
  }

  /** Each column tells its values in its metadata; an empty text is NULL. */
  private static InternalRow[] rows(StructType answer) {
    int count = answer.fields()[0].metadata().getStringArray("texts").length;
    InternalRow[] found = new InternalRow[count];
    for (int at = 0; at < count; at++) {
      GenericInternalRow row = new GenericInternalRow(answer.length());
      for (int i = 0; i < answer.length(); i++) {
        String text = answer.fields()[i].metadata().getStringArray("texts")[at];
        if (!text.isEmpty()) {
          row.update(i, UTF8String.fromString(text));
        }
      }
      found[at] = row;
    }
    return found;
  }
}
