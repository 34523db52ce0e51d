package weir.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.AlwaysTrue;
import org.apache.spark.sql.connector.expressions.filter.Predicate;

/**
 * Conditions of a statement as Python reads them: it decides which of them it takes.
 *
 * <p>Not Spark's older filters: their times are of Java's old calendar, which has no exact way back.
 */
final class Conditions {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Conditions() {}

  /** All of them must hold; an empty list is every row. */
  static String of(Predicate[] predicates) {
    List<List<Object>> told = new ArrayList<>();
    for (Predicate predicate : predicates) {
      if (!(predicate instanceof AlwaysTrue)) {
        told.add(told(predicate));
      }
    }
    try {
      return JSON.writeValueAsString(told);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error.getMessage(), error);
    }
  }

  /** Its text, name, column and values; the text alone unless it compares a column with values. */
  private static List<Object> told(Predicate predicate) {
    Expression[] parts = predicate.children();
    String text = predicate.toString();
    if (parts.length == 0 || !(parts[0] instanceof NamedReference column)) {
      return List.of(text);
    }
    List<Object> values = new ArrayList<>();
    for (int i = 1; i < parts.length; i++) {
      if (!(parts[i] instanceof Literal<?> literal)) {
        return List.of(text);
      }
      String type = literal.value() == null ? "void" : literal.dataType().typeName();
      values.add(List.of(type, String.valueOf(literal.value())));
    }
    return List.of(text, predicate.name(), column.fieldNames(), values);
  }
}
