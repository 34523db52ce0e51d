package weir.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.sources.AlwaysTrue;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.IsNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.StringStartsWith;

/** Conditions of a statement as Python reads them: it decides which of them it takes. */
final class Conditions {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Conditions() {}

  /** All of them must hold; an empty list is every row. */
  static String of(Filter[] filters) {
    List<List<Object>> told = new ArrayList<>();
    for (Filter filter : filters) {
      if (!(filter instanceof AlwaysTrue)) {
        told.add(told(filter));
      }
    }
    try {
      return JSON.writeValueAsString(told);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException(error.getMessage(), error);
    }
  }

  /** Its name, its column and its values; the name alone of what Python does not know. */
  private static List<Object> told(Filter filter) {
    String name = filter.getClass().getSimpleName();
    if (filter instanceof EqualTo one) {
      return told(name, one.attribute(), one.value());
    } else if (filter instanceof EqualNullSafe one) {
      return told(name, one.attribute(), one.value());
    } else if (filter instanceof GreaterThan one) {
      return told(name, one.attribute(), one.value());
    } else if (filter instanceof GreaterThanOrEqual one) {
      return told(name, one.attribute(), one.value());
    } else if (filter instanceof LessThan one) {
      return told(name, one.attribute(), one.value());
    } else if (filter instanceof LessThanOrEqual one) {
      return told(name, one.attribute(), one.value());
    } else if (filter instanceof StringStartsWith one) {
      return told(name, one.attribute(), one.value());
    } else if (filter instanceof In one) {
      return told(name, one.attribute(), one.values());
    } else if (filter instanceof IsNull one) {
      return told(name, one.attribute());
    } else if (filter instanceof IsNotNull one) {
      return told(name, one.attribute());
    }
    return List.of(filter.toString());
  }

  private static List<Object> told(String name, String attribute, Object... values) {
    List<Object> texts = new ArrayList<>();
    for (Object value : values) {
      Object plain = value instanceof Timestamp time ? time.toInstant() : value;
      texts.add(
          plain == null
              ? List.of("null", "")
              : List.of(plain.getClass().getSimpleName(), plain.toString()));
    }
    return List.of(name, Expressions.column(attribute).fieldNames(), texts);
  }
}
